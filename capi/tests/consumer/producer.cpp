// A program that attaches by headers alone: nothing is linked.
#include <scatter_ring_abi.h>

#include <cstdio>

int main() {
    std::printf("ABI %d.%d\n", SCATTER_RING_ABI_MAJOR, SCATTER_RING_ABI_MINOR);
    return 0;
}
