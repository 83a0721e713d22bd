//! `include/weir.h` is what cbindgen makes of `src/ffi`, and C and C++ compilers take it as it is.
//! `WEIR_UPDATE_HEADER=1 cargo test --test header` rewrites it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of `src/ffi` that export something, in the order in which the header presents them.
const CHAPTERS: [&str; 16] = [
    "types",
    "status",
    "text",
    "options",
    "pool",
    "blocks",
    "frees",
    "access",
    "copies",
    "batch",
    "stats",
    "order",
    "capture",
    "host_streams",
    "share",
    "frameworks",
];

fn generated() -> String {
    let sources = CHAPTERS
        .iter()
        .map(|name| root().join(format!("src/ffi/{name}.rs")));
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let builder = sources.fold(cbindgen::Builder::new(), |builder, path| builder.with_src(path));
    let mut header = Vec::new();
    builder.with_config(config).generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap()
}

/// The directory of the header, which was rewritten first if that was asked for.
fn include() -> PathBuf {
    static UPDATE: Once = Once::new();
    let folder = root().join("include");
    UPDATE.call_once(|| {
        if std::env::var_os("WEIR_UPDATE_HEADER").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("weir.h"), generated()).unwrap();
        }
    });
    folder
}

#[test]
fn the_committed_header_is_up_to_date() {
    let committed = fs::read_to_string(include().join("weir.h")).unwrap_or_default();
    let fresh = generated();
    let end = || std::iter::once("(end of file)");
    let mut lines = fresh
        .lines()
        .chain(end())
        .zip(committed.lines().chain(end()))
        .enumerate();
    if let Some((n, (new, old))) = lines.find(|(_, (new, old))| new != old) {
        panic!(
            "include/weir.h:{} says\n  {old}\nbut src/ffi makes it\n  {new}\nRun `WEIR_UPDATE_HEADER=1 cargo test \
             --test header`, and look at `git diff include/weir.h`: published names, numbers and layouts stay",
            n + 1
        );
    }
}

#[test]
fn every_export_is_in_the_header() {
    let header = generated();
    for entry in fs::read_dir(root().join("src/ffi")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        let source = source.replace("extern \"C-unwind\" fn ", "extern \"C\" fn ");
        for export in source.split("extern \"C\" fn ").skip(1) {
            let name = export.split('(').next().unwrap();
            let declares = |line: &str| !line.starts_with(" *") && line.contains(&format!("{name}("));
            let times = header.lines().filter(|line| declares(line)).count();
            assert!(
                times == 1 || !name.starts_with("weir_"),
                "{name} is in the header {times} times"
            );
        }
    }
}

/// Compiles a program that consists of `text`; the compiler's complaints are the failure.
fn compile(compiler: &str, language: &str, standard: &str, text: &str) {
    let mut child = Command::new(compiler)
        .args([
            "-x",
            language,
            standard,
            "-Wall",
            "-Wextra",
            "-pedantic",
            "-Werror",
            "-fsyntax-only",
            "-",
        ])
        .arg("-I")
        .arg(include())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{compiler} is needed for this test: {error}"));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{compiler} {standard}:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn compile_everywhere(text: &str) {
    compile("gcc", "c", "-std=c11", text);
    compile("g++", "c++", "-std=c++17", text);
}

#[test]
fn it_compiles_alone_and_included_twice() {
    compile_everywhere("#include <weir.h>\n");
    compile_everywhere("#include <weir.h>\n#include <weir.h>\nint main(void) { return WEIR_OK; }\n");
}

/// Each C++ header by itself, under warnings that a program may have asked for. Those that need somebody else's headers
/// are compiled where these are: `c_tests/kokkos/CMakeLists.txt`, `c_tests/cpp`.
#[test]
fn the_cpp_headers_compile_alone_and_included_twice() {
    let headers = fs::read_dir(include().join("weir")).unwrap();
    let names: Vec<String> = headers
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| {
            !["kokkos", "thrust", "memory_resource"]
                .iter()
                .any(|other| name.starts_with(other))
        })
        .collect();
    assert!(names.contains(&"pool.hpp".to_owned()), "{names:?}");
    for name in names {
        let strict = "#pragma GCC diagnostic error \"-Wshadow\"\n\
                      #pragma GCC diagnostic error \"-Wconversion\"\n\
                      #pragma GCC diagnostic error \"-Wold-style-cast\"\n";
        let text = format!("{strict}#include <weir/{name}>\n#include <weir/{name}>\nint main() {{}}\n");
        for standard in ["-std=c++17", "-std=c++20"] {
            compile("g++", "c++", standard, &text);
        }
    }
}

/// What other programs were compiled with can never change.
#[test]
fn layouts_and_numbers_are_frozen() {
    compile_everywhere(
        r#"
        #include <weir.h>
        #ifdef __cplusplus
        #define CHECK(x) static_assert(x, #x)
        #else
        #define CHECK(x) _Static_assert(x, #x)
        #endif
        CHECK(sizeof(weir_status) == 4);
        CHECK(sizeof(weir_pool_options) == 128);
        CHECK(offsetof(weir_pool_options, max_bytes) == 16);
        CHECK(offsetof(weir_pool_options, slack) == 56);
        CHECK(offsetof(weir_pool_options, on_oom) == 64);
        CHECK(offsetof(weir_pool_options, name) == 80);
        CHECK(offsetof(weir_pool_options, device_memory) == 88);
        CHECK(offsetof(weir_pool_options, one_handle_blocks) == 96);
        CHECK(offsetof(weir_pool_options, thread_caches) == 104);
        CHECK(offsetof(weir_pool_options, growth_ahead) == 112);
        CHECK(offsetof(weir_pool_options, numa_node) == 120);
        CHECK(sizeof(weir_pool_stats) == 192);
        CHECK(offsetof(weir_pool_stats, largest_free_bytes) == 72);
        CHECK(offsetof(weir_pool_stats, fragmentation) == 184);
        CHECK(WEIR_MEMORY_DEVICE == 0 && WEIR_MEMORY_PINNED == 1 && WEIR_MEMORY_HOST == 2);
        CHECK(WEIR_DEVICE_MEMORY_MAPPED == 0 && WEIR_DEVICE_MEMORY_PLAIN == 1);
        CHECK(WEIR_ATTRIBUTE_REUSE_FOLLOW_EVENT_DEPENDENCIES == 1 && WEIR_ATTRIBUTE_USED_HIGH == 8);
        CHECK(WEIR_ACCESS_NONE == 0 && WEIR_ACCESS_READ == 1 && WEIR_ACCESS_READ_WRITE == 3);
        CHECK(WEIR_DEVICE_HOST == -1);
        CHECK(WEIR_ERROR_INTERNAL == 24);
        static int callback(void *user, weir_pool *pool, size_t bytes) { (void)user; (void)pool; return bytes == 0; }
        int main(void) {
          weir_oom_callback on_oom = callback;
          weir_status (*create)(const weir_pool_options *, weir_pool **) = weir_pool_create;
          weir_status (*free_batch)(weir_pool *, void *const *, size_t, weir_stream) = weir_pool_free_batch;
          const char *(*name)(int) = weir_status_name;
          return on_oom && create && free_batch && name ? 0 : 1;
        }
        "#,
    );
}
