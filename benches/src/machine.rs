//! Which machine this is: enough to compare numbers, and nothing that says whose it is.

use std::{env::consts, fs, process::Command, thread::available_parallelism};

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    /// The system's own name for itself, and the architecture.
    pub(crate) os: String,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self {
            cpu: cpu().unwrap_or_else(|| consts::ARCH.into()),
            cores: available_parallelism().map_or(1, Into::into),
            os: format!("{} {}", os().unwrap_or_else(|| consts::OS.into()), consts::ARCH),
        }
    }

    /// For file names: `amd-epyc-2-cores`.
    pub(crate) fn slug(&self) -> String {
        let cpu = self.cpu.replace("(R)", "").replace("(TM)", "").to_lowercase();
        let mut words: Vec<&str> = cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
        let cores = self.cores.to_string();
        words.extend([cores.as_str(), if self.cores == 1 { "core" } else { "cores" }]);
        words.join("-")
    }
}

/// Linux on ARM names no model: the architecture has to do.
fn cpu() -> Option<String> {
    value_of("/proc/cpuinfo", "model name", ':').or_else(|| answer("sysctl", &["-n", "machdep.cpu.brand_string"]))
}

fn os() -> Option<String> {
    value_of("/etc/os-release", "PRETTY_NAME", '=')
        .or_else(|| answer("sw_vers", &["-productVersion"]).map(|version| format!("macOS {version}")))
}

/// The first value of that name in a file of names and values.
fn value_of(file: &str, name: &str, separator: char) -> Option<String> {
    fs::read_to_string(file).ok()?.lines().find_map(|line| {
        let (found, value) = line.split_once(separator)?;
        (found.trim() == name).then(|| value.trim().trim_matches('"').to_owned())
    })
}

/// What a program prints, in one line; `None` when it fails or says nothing.
pub(crate) fn answer(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_is_a_plain_file_name() {
        let slug = |cpu: &str, cores| Machine { cpu: cpu.into(), cores, os: String::new() }.slug();
        assert_eq!(slug("AMD EPYC", 2), "amd-epyc-2-cores");
        assert_eq!(slug("Intel(R) Xeon(R) CPU @ 2.20GHz", 1), "intel-xeon-cpu-2-20ghz-1-core");
        assert_eq!(slug("../weird /ż", 8), "weird-8-cores");
    }
}
