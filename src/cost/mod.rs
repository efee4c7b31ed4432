//! How long a route would take, and which one is the best.
//!
//! [`choose`] compares a few candidates by [`predict`], which is arithmetic over the counts of the [`Work`] and the figures
//! of the [`Situation`]; [`explain`] gives the same candidates as a list. A [`Chooser`] keeps decisions for work of equal
//! geometry, and corrects them by what they really took. [`LinkMeasurements`] and [`Accuracy`] learn from real traffic. Nothing here does I/O or reads a clock, and
//! nothing knows a device's name.

mod accuracy;
mod choose;
mod chooser;
mod direct;
mod explain;
mod gather;
mod model;
mod moving;
mod profile;
mod terms;
mod tried;

pub use crate::plan::{Class, Direction, Work};
pub use accuracy::Accuracy;
pub use choose::{Choice, Decision, Route, choose};
pub use chooser::{Chooser, ChooserCounts, Geometry};
pub use explain::{Candidate, Explanation, Shortage, Verdict, explain};
pub use model::window_segments;
pub use model::{Bound, CHUNK_ELEMENTS, Prediction, Situation, device_gathers_from, predict, window_operations};
pub use moving::{LinkMeasurements, Moving};
pub use profile::{Budget, CopyProfile, LinkProfile, Wire};
