//! Link options of the shared library: its SONAME, and that it stays loaded once loaded (its exit handlers
//! and stream workers outlive a `dlclose`). And a `libcuda.so` for the linker that holds nothing, because
//! `cuda-driver-sys`, of which weir uses the types alone, asks to be linked with one: no CUDA is needed to build weir,
//! and no library or program that is linked here needs any when it is loaded. Needs nothing but cargo.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR");
    if let (Ok("linux"), Ok(major)) = (target.as_deref(), major) {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweir.so.{major}");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    if let Some(out) = std::env::var_os("OUT_DIR") {
        let out = PathBuf::from(out);
        // a linker script, which may be text
        std::fs::write(
            out.join("libcuda.so"),
            "/* weir opens libcuda.so.1 at run time. */\n",
        )
        .expect("cargo's own folder can be written to");
        println!("cargo::rustc-link-search=native={}", out.display());
    }
}
