//! Pictures of simulated runs, as SVG. Each says that it is simulated.

use super::{Failure, file};
use plotters::backend::SVGBackend;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, WHITE};
use std::path::Path;

/// Values in colours, one table below the other.
pub struct HeatMap {
    pub title: String,
    pub panels: Vec<Panel>,
}

/// One table: for each row a value in each column of each group, if there is one.
pub struct Panel {
    pub title: String,
    pub groups: Vec<String>,
    /// The columns of every group.
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

pub struct Row {
    pub label: String,
    /// Parts, 0.1 is 10 %.
    pub values: Vec<Option<f64>>,
}

/// What was under way when, one line below the other.
pub struct Timeline {
    pub title: String,
    pub caption: String,
    pub lines: Vec<Line>,
    pub end_us: f64,
}

/// What one part of a host did.
pub struct Line {
    pub label: String,
    pub color: usize,
    pub bars: Vec<Span>,
}

/// One thing that it did.
#[derive(Clone, Copy)]
pub struct Span {
    pub from_us: f64,
    pub to_us: f64,
    /// Shown where it fits.
    pub number: u32,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

impl HeatMap {
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let columns = self.panels.iter().map(|panel| panel.groups.len() * (panel.columns.len() * 22 + 10)).max();
        let height: usize = self.panels.iter().map(|panel| 56 + panel.rows.len() * 13).sum();
        let width = (LABELS as usize + columns.unwrap_or(0) + 20).max(760);
        let size = (width as u32, (height + 84) as u32);
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            area.fill(&WHITE).map_err(drawing)?;
            text(&area, &self.title, (16, 20), 17, HPos::Left)?;
            self.legend(&area)?;
            let mut top = 72;
            for panel in &self.panels {
                panel.draw(&area, top)?;
                top += 56 + panel.rows.len() as i32 * 13;
            }
            area.present().map_err(drawing)?;
        }
        file::write(path, &svg)
    }

    fn legend(&self, area: &Area) -> Result<(), Failure> {
        let mut left = 16;
        let mut sample = |color: RGBColor, label: &str| {
            fill(area, (left, 42), (left + 16, 54), color)?;
            text(area, label, (left + 22, 48), 11, HPos::Left)?;
            left += 100;
            Ok::<(), Failure>(())
        };
        for (limit, color) in STEPS {
            sample(color, &format!("up to {:.0} %", limit * 100.0))?;
        }
        sample(BEYOND, "more")?;
        sample(NOTHING, "no such cell")
    }
}

impl Panel {
    fn draw(&self, area: &Area, top: i32) -> Result<(), Failure> {
        text(area, &self.title, (16, top + 12), 13, HPos::Left)?;
        let group_width = self.columns.len() as i32 * 22 + 10;
        for (g, group) in self.groups.iter().enumerate() {
            let left = LABELS + g as i32 * group_width;
            text(area, group, (left, top + 26), 11, HPos::Left)?;
            for (c, column) in self.columns.iter().enumerate() {
                text(area, column, (left + c as i32 * 22 + 10, top + 40), 9, HPos::Center)?;
            }
        }
        for (r, row) in self.rows.iter().enumerate() {
            let y = top + 48 + r as i32 * 13;
            text(area, &row.label, (LABELS - 8, y + 6), 10, HPos::Right)?;
            for (at, value) in row.values.iter().enumerate() {
                let (group, column) = (at / self.columns.len(), at % self.columns.len());
                let x = LABELS + group as i32 * group_width + column as i32 * 22;
                fill(area, (x, y), (x + 20, y + 12), value.map_or(NOTHING, color_of))?;
            }
        }
        Ok(())
    }
}

impl Timeline {
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let mut svg = String::new();
        let height = 96 + self.lines.len() as i32 * LINE;
        {
            let area = SVGBackend::with_string(&mut svg, (1200, height as u32)).into_drawing_area();
            area.fill(&WHITE).map_err(drawing)?;
            text(&area, &self.title, (16, 20), 17, HPos::Left)?;
            text(&area, &self.caption, (16, 42), 12, HPos::Left)?;
            self.axis(&area, height)?;
            for (i, line) in self.lines.iter().enumerate() {
                let y = 60 + i as i32 * LINE;
                text(&area, &line.label, (LABELS - 8, y + LINE / 2), 12, HPos::Right)?;
                line.bars.iter().try_for_each(|bar| self.bar(&area, bar, y, line.color))?;
            }
            area.present().map_err(drawing)?;
        }
        file::write(path, &svg)
    }

    fn x(&self, us: f64) -> i32 {
        LABELS + (us / self.end_us.max(1e-3) * f64::from(1200 - 24 - LABELS)) as i32
    }

    fn axis(&self, area: &Area, height: i32) -> Result<(), Failure> {
        let step = nice_step(self.end_us / 10.0);
        let mut at = 0.0;
        while at <= self.end_us {
            let x = self.x(at);
            let line = PathElement::new(vec![(x, 56), (x, height - 30)], RGBColor(221, 221, 221));
            area.draw(&line).map_err(drawing)?;
            text(area, &format!("{at:.0} us"), (x, height - 18), 11, HPos::Center)?;
            at += step;
        }
        Ok(())
    }

    fn bar(&self, area: &Area, bar: &Span, y: i32, color: usize) -> Result<(), Failure> {
        let (left, right) = (self.x(bar.from_us), self.x(bar.to_us).max(self.x(bar.from_us) + 1));
        let [even, odd] = SHADES[color % SHADES.len()];
        fill(area, (left, y + 3), (right, y + LINE - 3), if bar.number.is_multiple_of(2) { even } else { odd })?;
        let label = bar.number.to_string();
        if right - left > 8 * label.len() as i32 {
            text(area, &label, ((left + right) / 2, y + LINE / 2), 10, HPos::Center)?;
        }
        Ok(())
    }
}

/// 1, 2 or 5 times a power of ten, at least so large.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-3).log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|step| *step >= least).unwrap_or(10.0 * power)
}

fn color_of(value: f64) -> RGBColor {
    STEPS.iter().find(|(limit, _)| value <= *limit).map_or(BEYOND, |(_, color)| *color)
}

fn fill(area: &Area, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Result<(), Failure> {
    area.draw(&Rectangle::new([from, to], color.filled())).map_err(drawing)
}

fn text(area: &Area, text: &str, at: (i32, i32), size: i32, side: HPos) -> Result<(), Failure> {
    let style = ("sans-serif", f64::from(size) * POINTS).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(drawing)
}

fn drawing(error: impl std::fmt::Display) -> Failure {
    Failure::run(format!("the picture: {error}"))
}

/// The library divides the size of a font by this, to have the height of a line.
const POINTS: f64 = 1.24;
/// Room for the labels on the left.
const LABELS: i32 = 190;
/// Height of a line of a timeline.
const LINE: i32 = 22;
/// Colours by value, from a sequence that those who see no red or green can order.
const STEPS: [(f64, RGBColor); 5] = [
    (0.01, RGBColor(237, 248, 251)),
    (0.03, RGBColor(179, 205, 227)),
    (0.05, RGBColor(140, 150, 198)),
    (0.10, RGBColor(136, 86, 167)),
    (0.15, RGBColor(240, 140, 40)),
];
const BEYOND: RGBColor = RGBColor(180, 20, 20);
const NOTHING: RGBColor = RGBColor(242, 242, 242);
/// For each kind of line, of chunks in turn.
const SHADES: [[RGBColor; 2]; 6] = [
    [RGBColor(200, 200, 200), RGBColor(225, 225, 225)],
    [RGBColor(166, 206, 227), RGBColor(198, 224, 238)],
    [RGBColor(253, 191, 111), RGBColor(254, 217, 166)],
    [RGBColor(178, 223, 138), RGBColor(208, 237, 183)],
    [RGBColor(140, 150, 198), RGBColor(179, 186, 219)],
    [RGBColor(251, 154, 153), RGBColor(253, 191, 190)],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_color_of_the_step_that_holds_them() {
        assert_eq!(color_of(0.0), STEPS[0].1);
        assert_eq!(color_of(0.10), STEPS[3].1);
        assert_eq!(color_of(0.1001), STEPS[4].1);
        assert_eq!(color_of(2.0), BEYOND);
    }

    #[test]
    fn axes_have_round_steps() {
        assert_eq!([nice_step(0.9), nice_step(1.1), nice_step(250.0), nice_step(500.0)], [1.0, 2.0, 500.0, 500.0]);
    }

    #[test]
    fn a_map_has_a_cell_for_each_value_and_all_labels() {
        let rows = (0..3).map(|r| Row { label: format!("row {r}"), values: vec![Some(f64::from(r) * 0.06), None] });
        let columns = vec!["1K".to_owned(), "4K".to_owned()];
        let panel = Panel { title: "panel".into(), groups: vec!["a link".into()], columns, rows: rows.collect() };
        let file = tempfile::NamedTempFile::new().unwrap();
        HeatMap { title: "Regret (simulated)".into(), panels: vec![panel] }.write(file.path()).unwrap();
        let svg = std::fs::read_to_string(file.path()).unwrap();
        for label in ["Regret (simulated)", "panel", "a link", "1K", "4K", "row 0", "row 2", "up to 15 %"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
        // The ground, seven of the legend, six values.
        assert_eq!(svg.matches("<rect").count(), 1 + 7 + 6);
    }
}
