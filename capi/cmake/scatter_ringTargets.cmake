# The targets, of what is installed and of what is built with a program alike. Expects where the library and the headers
# are, and which version it is: scatter_ring_LIBRARY_DIR, scatter_ring_INCLUDE_DIRS, scatter_ring_VERSION.
if(TARGET scatter_ring::scatter_ring)
    return()
endif()

string(REGEX MATCH "^[0-9]+" scatter_ring_major "${scatter_ring_VERSION}")
add_library(scatter_ring::scatter_ring SHARED IMPORTED GLOBAL)
set_target_properties(scatter_ring::scatter_ring PROPERTIES
    IMPORTED_LOCATION "${scatter_ring_LIBRARY_DIR}/libscatter_ring.so.${scatter_ring_VERSION}"
    IMPORTED_SONAME "libscatter_ring.so.${scatter_ring_major}"
    INTERFACE_INCLUDE_DIRECTORIES "${scatter_ring_INCLUDE_DIRS}")

add_library(scatter_ring::static STATIC IMPORTED GLOBAL)
set_target_properties(scatter_ring::static PROPERTIES
    IMPORTED_LOCATION "${scatter_ring_LIBRARY_DIR}/libscatter_ring.a"
    INTERFACE_INCLUDE_DIRECTORIES "${scatter_ring_INCLUDE_DIRS}"
    INTERFACE_LINK_LIBRARIES "pthread;dl;m;gcc_s;util;rt")

add_library(scatter_ring::producer INTERFACE IMPORTED GLOBAL)
set_target_properties(scatter_ring::producer PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${scatter_ring_INCLUDE_DIRS}")
