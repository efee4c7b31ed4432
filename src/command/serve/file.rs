//! The configuration file: what may stand in it, and where it says something wrong.

use super::peers::Transport;
use super::settings::Trust;
use crate::command::Failure;
use bytesize::ByteSize;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// What a file says. What it does not say stays as it is without a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    pub socket: Option<PathBuf>,
    pub workers: Option<Spanned<i64>>,
    pub spin_us: Option<Spanned<i64>>,
    pub stop_within_s: Option<Spanned<i64>>,
    pub users: Option<Vec<Spanned<User>>>,
    pub trust: Option<Trust>,
    pub read_ahead: Option<bool>,
    #[serde(default)]
    pub limits: LimitKeys,
    pub peers: Option<PeerKeys>,
    #[serde(default)]
    pub tables: BTreeMap<String, Spanned<PathBuf>>,
}

/// The section `[limits]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitKeys {
    pub sessions: Option<Spanned<i64>>,
    pub sessions_per_user: Option<Spanned<i64>>,
    pub ring_slots: Option<Spanned<i64>>,
    pub regions: Option<Spanned<i64>>,
    pub region_bytes: Option<Spanned<Size>>,
    pub batches: Option<Spanned<i64>>,
    pub held_bytes: Option<Spanned<Size>>,
}

/// The section `[peers]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerKeys {
    pub listen: Option<Vec<Spanned<String>>>,
    pub advertise: Option<Vec<Spanned<String>>>,
    pub key_file: Option<PathBuf>,
    pub congestion: Option<String>,
    pub lanes: Option<Spanned<i64>>,
    pub slot_bytes: Option<Spanned<Size>>,
    pub slots: Option<Spanned<i64>>,
    pub owner_slots: Option<Spanned<i64>>,
    pub connections: Option<Spanned<i64>>,
    pub map_memory: Option<bool>,
    pub transport: Option<Transport>,
    pub device: Option<String>,
    pub device_port: Option<Spanned<i64>>,
    pub gid_index: Option<Spanned<i64>>,
}

/// A user as operators write one.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a user must be a name or a number")]
pub enum User {
    Number(u32),
    Name(String),
}

/// A number of bytes, plain or as text with a unit.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a size must be a number of bytes, or text as \"4 GiB\"")]
pub enum Size {
    Bytes(i64),
    Text(String),
}

/// A file that was read, for errors that say where in it.
#[derive(Debug)]
pub struct File<'a> {
    path: &'a Path,
    text: String,
}

impl File<'_> {
    /// Says nothing.
    pub fn none() -> File<'static> {
        File { path: Path::new(""), text: String::new() }
    }

    pub fn read(path: &Path) -> Result<File<'_>, Failure> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(File { path, text }),
            Err(error) => Err(Failure::Usage(format!("{}: {error}", path.display()))),
        }
    }

    pub fn keys(&self) -> Result<Keys, Failure> {
        // The parser's text shows the line, with the key in it.
        let wrong = |error: toml::de::Error| format!("{}: {}", self.path.display(), error.to_string().trim_end());
        toml::from_str(&self.text).map_err(|error| Failure::Usage(wrong(error)))
    }

    /// `key = what`, as it stands at `place`, is wrong.
    pub fn wrong<T>(&self, key: &str, place: &Spanned<T>, why: impl Display) -> Failure {
        let start = place.span().start;
        let line = 1 + self.text[..start].matches('\n').count();
        let found = &self.text[place.span()];
        Failure::Usage(format!("{}:{line}: {key} = {found}: {why}", self.path.display()))
    }

    /// A number from the file, if it is there and in this range.
    pub fn number<N>(
        &self,
        key: &str,
        found: Option<&Spanned<i64>>,
        allowed: RangeInclusive<N>,
    ) -> Result<Option<N>, Failure>
    where
        N: TryFrom<i64> + PartialOrd + Display,
    {
        let Some(place) = found else { return Ok(None) };
        match N::try_from(*place.get_ref()) {
            Ok(number) if allowed.contains(&number) => Ok(Some(number)),
            _ => {
                let (least, most) = (allowed.start(), allowed.end());
                Err(self.wrong(key, place, format!("must be from {least} to {most}")))
            }
        }
    }

    /// A size from the file in bytes, if it is there and not more than `most`.
    pub fn size(&self, key: &str, found: Option<&Spanned<Size>>, most: u64) -> Result<Option<u64>, Failure> {
        let Some(place) = found else { return Ok(None) };
        let bytes = match place.get_ref() {
            Size::Bytes(bytes) => u64::try_from(*bytes).ok(),
            Size::Text(text) => text.parse::<ByteSize>().ok().map(|size| size.as_u64()),
        };
        match bytes {
            Some(bytes) if (1..=most).contains(&bytes) => Ok(Some(bytes)),
            _ => {
                let why = format!("must be from 1 to {most} bytes, as a number or as text with a unit: \"4 GiB\"");
                Err(self.wrong(key, place, why))
            }
        }
    }
}
