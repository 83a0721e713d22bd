//! Link options of the shared library: its SONAME, and that it stays loaded once loaded (its exit handlers
//! and stream workers outlive a `dlclose`). Needs nothing but cargo.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR");
    if let (Ok("linux"), Ok(major)) = (target.as_deref(), major) {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweir.so.{major}");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
