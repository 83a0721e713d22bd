//! Options from `WEIR_*` environment variables.

use crate::base::error::Error;
use crate::config::{Config, DeviceMemory, MOST_SLACK};

/// The default options with every variable applied that `variable` knows; the process's own are read by
/// [`process_variable`].
pub fn config(variable: impl Fn(&str) -> Option<String>) -> Result<Config, Error> {
    let mut config = Config::default();
    let set = |name: &'static str| variable(name).map(|text| Variable { name, text });
    if let Some(text) = set("WEIR_MAX_BYTES") {
        config.max_bytes = text.bytes()?;
    }
    if let Some(text) = set("WEIR_RELEASE_THRESHOLD") {
        config.release_threshold = text.bytes()?;
    }
    if let Some(text) = set("WEIR_INITIAL_BYTES") {
        config.initial_bytes = text.bytes()?;
    }
    if let Some(text) = set("WEIR_GROWTH_AHEAD") {
        config.growth_ahead = text.bytes()?;
    }
    if let Some(text) = set("WEIR_SLACK") {
        config.slack = text.fraction()?;
    }
    if let Some(text) = set("WEIR_REUSE_FOLLOW_EVENT_DEPENDENCIES") {
        config.reuse.event_dependencies = text.switch()?;
    }
    if let Some(text) = set("WEIR_REUSE_ALLOW_OPPORTUNISTIC") {
        config.reuse.opportunistic = text.switch()?;
    }
    if let Some(text) = set("WEIR_REUSE_ALLOW_INTERNAL_DEPENDENCIES") {
        config.reuse.internal_dependencies = text.switch()?;
    }
    if let Some(text) = set("WEIR_THREAD_CACHES") {
        config.thread_caches = text.switch()?;
    }
    if let Some(text) = set("WEIR_DECLARED_STREAMS") {
        config.declared_streams = text.switch()?;
    }
    if let Some(text) = set("WEIR_NUMA_NODE") {
        config.numa_node = text.node()?;
    }
    if let Some(text) = set("WEIR_DEVICE_MEMORY") {
        config.device_memory = text.device_memory()?;
    }
    Ok(config)
}

/// Are blocks of device memory to be shown to a tool (`WEIR_NVTX`)?
pub fn nvtx(variable: impl Fn(&str) -> Option<String>) -> Result<bool, Error> {
    let name = "WEIR_NVTX";
    variable(name).map_or(Ok(false), |text| Variable { name, text }.switch())
}

/// A variable of this process.
pub fn process_variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|text| text.to_string_lossy().into_owned())
}

struct Variable {
    name: &'static str,
    text: String,
}

impl Variable {
    fn malformed(&self, wanted: &str) -> Error {
        Error::InvalidArgument(format!(
            "the environment variable {}={:?} is not {wanted}",
            self.name, self.text
        ))
    }

    /// A whole number, with K, M, G or T for powers of 1024; `KiB` and `KB` mean the same as `K`.
    fn bytes(&self) -> Result<u64, Error> {
        let text = self.text.trim();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let shift = match text[digits..].trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => Some(0),
            "k" | "kb" | "kib" => Some(10),
            "m" | "mb" | "mib" => Some(20),
            "g" | "gb" | "gib" => Some(30),
            "t" | "tb" | "tib" => Some(40),
            _ => None,
        };
        let number: Option<u64> = text[..digits].parse().ok();
        shift
            .zip(number)
            .and_then(|(shift, number)| number.checked_mul(1 << shift))
            .ok_or_else(|| self.malformed("a number of bytes such as 4096, 64K, 512M or 2GiB"))
    }

    fn fraction(&self) -> Result<f64, Error> {
        let number: Option<f64> = self.text.trim().parse().ok();
        number
            .filter(|number| (0.0..=MOST_SLACK).contains(number))
            .ok_or_else(|| self.malformed("a fraction from 0 to 16 such as 0.025"))
    }

    /// -1 is the nearest one.
    fn node(&self) -> Result<Option<i32>, Error> {
        let number: Option<i32> = self.text.trim().parse().ok();
        match number {
            Some(-1) => Ok(None),
            Some(node) if node >= 0 => Ok(Some(node)),
            _ => Err(self.malformed("the number of a NUMA node, or -1 for the nearest")),
        }
    }

    fn device_memory(&self) -> Result<DeviceMemory, Error> {
        match self.text.trim().to_ascii_lowercase().as_str() {
            "mapped" => Ok(DeviceMemory::Mapped),
            "plain" => Ok(DeviceMemory::Plain),
            _ => Err(self.malformed("mapped or plain")),
        }
    }

    fn switch(&self) -> Result<bool, Error> {
        match self.text.trim().to_ascii_lowercase().as_str() {
            "1" | "on" | "true" => Ok(true),
            "0" | "off" | "false" => Ok(false),
            _ => Err(self.malformed("0 or 1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, text: &'static str) -> Result<Config, Error> {
        config(|asked| (asked == name).then(|| text.to_string()))
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        let config = config(|_| None).unwrap();
        assert_eq!(
            (config.max_bytes, config.release_threshold, config.initial_bytes),
            (0, u64::MAX, 0)
        );
        assert_eq!(config.growth_ahead, 0);
        assert_eq!(config.slack, Config::default().slack);
        assert_eq!(config.reuse, Config::default().reuse);
    }

    #[test]
    fn byte_suffixes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7b", 7),
            ("64K", 64 << 10),
            ("64kB", 64 << 10),
            (" 512 MiB ", 512 << 20),
            ("2g", 2 << 30),
            ("3TiB", 3 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(with("WEIR_MAX_BYTES", text).unwrap().max_bytes, bytes, "{text}");
        }
    }

    #[test]
    fn malformed_variables_are_named() {
        for (name, text) in [
            ("WEIR_MAX_BYTES", ""),
            ("WEIR_MAX_BYTES", "K"),
            ("WEIR_MAX_BYTES", "-1"),
            ("WEIR_MAX_BYTES", "1.5G"),
            ("WEIR_RELEASE_THRESHOLD", "1 X"),
            ("WEIR_INITIAL_BYTES", "18446744073709551616"),
            ("WEIR_INITIAL_BYTES", "16777216T"),
            ("WEIR_GROWTH_AHEAD", "much"),
            ("WEIR_NUMA_NODE", "-2"),
            ("WEIR_NUMA_NODE", "near"),
            ("WEIR_SLACK", "nan"),
            ("WEIR_SLACK", "-0.5"),
            ("WEIR_SLACK", "inf"),
            ("WEIR_SLACK", "16.5"),
            ("WEIR_REUSE_FOLLOW_EVENT_DEPENDENCIES", "2"),
            ("WEIR_REUSE_ALLOW_OPPORTUNISTIC", "maybe"),
            ("WEIR_REUSE_ALLOW_INTERNAL_DEPENDENCIES", ""),
        ] {
            match with(name, text) {
                Err(Error::InvalidArgument(message)) => assert!(message.contains(name), "{message}"),
                other => panic!("{name}={text}: {:?}", other.map(|_| "accepted")),
            }
        }
    }

    #[test]
    fn blocks_are_shown_to_tools_on_request_only() {
        let with = |text: Option<&str>| nvtx(|name| text.filter(|_| name == "WEIR_NVTX").map(str::to_string));
        assert_eq!(with(None), Ok(false));
        assert_eq!((with(Some("0")), with(Some("1"))), (Ok(false), Ok(true)));
        assert!(matches!(with(Some("yes")), Err(Error::InvalidArgument(why)) if why.contains("WEIR_NVTX")));
    }

    #[test]
    fn every_variable_reaches_its_option() {
        assert_eq!(
            with("WEIR_RELEASE_THRESHOLD", "1M").unwrap().release_threshold,
            1 << 20
        );
        assert_eq!(with("WEIR_INITIAL_BYTES", "2M").unwrap().initial_bytes, 2 << 20);
        assert_eq!(with("WEIR_GROWTH_AHEAD", "64M").unwrap().growth_ahead, 64 << 20);
        assert_eq!(with("WEIR_SLACK", "0.25").unwrap().slack, 0.25);
        assert!(
            !with("WEIR_REUSE_FOLLOW_EVENT_DEPENDENCIES", "0")
                .unwrap()
                .reuse
                .event_dependencies
        );
        assert!(
            !with("WEIR_REUSE_ALLOW_OPPORTUNISTIC", "off")
                .unwrap()
                .reuse
                .opportunistic
        );
        assert!(
            !with("WEIR_REUSE_ALLOW_INTERNAL_DEPENDENCIES", "FALSE")
                .unwrap()
                .reuse
                .internal_dependencies
        );
    }
}
