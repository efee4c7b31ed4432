//! Gives the shared library the name under which programs that were linked with it look for it.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets the version");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libscatter_ring.so.{major}");
    println!("cargo:rerun-if-changed=build.rs");
}
