//! Where the rows of a table lie: what a file's header says, or the command line where there is none.

use super::super::{Failure, report};
use super::{file, npy};
use npyz::{DType, Order};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// What the command line says about a table.
#[derive(clap::Args)]
pub struct Layout {
    /// Which tensor of a .safetensors file [default: the only one with two dimensions]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["export", "offset"])]
    tensor: Option<String>,
    /// Bytes of a row: needed for a raw table and for --export, and checked where a header says it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    row_bytes: Option<u32>,
    /// Where row 0 starts in a raw table or an export [default: 0]
    #[arg(long, value_name = "BYTES")]
    offset: Option<u64>,
}

/// Rows of equal length, one behind the other.
pub struct Table {
    /// A path or a name, for messages.
    name: String,
    /// Where row 0 starts.
    pub offset: u64,
    pub rows: u64,
    pub row_bytes: u32,
    pub row: RowType,
}

/// What a row is for NumPy.
pub struct RowType {
    pub dtype: DType,
    /// Of one row.
    pub shape: Vec<u64>,
    /// What the elements really are, where NumPy does not know it and `dtype` only has the right size.
    pub in_place_of: Option<String>,
}

/// The format's own limit.
const SAFETENSORS_HEADER_BYTES_MAX: u64 = 100_000_000;

impl Table {
    /// The table of a file, by its extension.
    pub fn in_file(path: &Path, layout: &Layout) -> Result<Table, Failure> {
        let name = path.display().to_string();
        let failed = file::failed("reading the table", path);
        let mut file = File::open(path).map_err(&failed)?;
        let metadata = file.metadata().map_err(&failed)?;
        if !metadata.is_file() {
            return Err(Failure::run(format!("{name} is not a regular file")));
        }
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if extension != "safetensors" && layout.tensor.is_some() {
            return Err(Failure::Usage(format!("--tensor is for .safetensors files, and {name} is none")));
        }
        let table = match extension {
            "npy" => Table::of_npy(name, &mut file, metadata.len()),
            "safetensors" => Table::of_safetensors(name, &mut file, metadata.len(), layout.tensor.as_deref()),
            _ => return Table::raw(name, metadata.len(), layout),
        }?;
        if layout.offset.is_some() {
            return Err(Failure::Usage(format!("--offset is for raw tables: the header of {} says it", table.name)));
        }
        if let Some(asked) = layout.row_bytes.filter(|asked| *asked != table.row_bytes) {
            let (name, found) = (&table.name, table.row_bytes);
            return Err(Failure::Usage(format!(
                "--row-bytes {asked}: by the header of {name} a row has {found} bytes"
            )));
        }
        Ok(table)
    }

    /// Memory without a header: `bytes` of it, with rows from the offset to the end.
    pub fn raw(name: String, bytes: u64, layout: &Layout) -> Result<Table, Failure> {
        let Some(row_bytes) = layout.row_bytes else {
            return Err(Failure::Usage(format!("{name} has no header that says how long a row is: give --row-bytes")));
        };
        let offset = layout.offset.unwrap_or(0);
        let len = bytes.saturating_sub(offset);
        if len < u64::from(row_bytes) {
            let text = format!("{name} has {bytes} bytes: no row of {row_bytes} bytes from offset {offset} on");
            return Err(Failure::run(text));
        }
        let rest = len % u64::from(row_bytes);
        if rest != 0 {
            let text = format!(
                "{name}: {len} bytes from offset {offset} on are not a number of rows of {row_bytes} bytes, {rest} are \
                 left over"
            );
            return Err(Failure::run(text));
        }
        let row = RowType { dtype: plain("|u1"), shape: vec![row_bytes.into()], in_place_of: None };
        Ok(Table { name, offset, rows: len / u64::from(row_bytes), row_bytes, row })
    }

    fn of_npy(name: String, file: &mut File, file_bytes: u64) -> Result<Table, Failure> {
        let bad = |why: String| Failure::run(format!("{name}: {why}"));
        let header = npy::read_header(&mut *file).map_err(bad)?;
        let Some((&rows, shape)) = header.shape().split_first() else {
            return Err(bad("one number without a dimension has no rows".to_owned()));
        };
        if header.order() == Order::Fortran && !shape.is_empty() {
            let text = "in Fortran order a row is not in one piece: save it again with numpy.ascontiguousarray";
            return Err(bad(text.to_owned()));
        }
        if header.uses_pickled_array() {
            return Err(bad("rows of Python objects have no fixed length".to_owned()));
        }
        let dtype = header.dtype();
        let row_bits = dtype.num_bytes().and_then(|bytes| bits_of_row(shape, bytes.checked_mul(8)?));
        let row = RowType { dtype, shape: shape.to_vec(), in_place_of: None };
        let offset = file.stream_position()?;
        Table { name, offset, rows, row_bytes: 0, row }.checked(row_bits, file_bytes)
    }

    fn of_safetensors(name: String, file: &mut File, file_bytes: u64, tensor: Option<&str>) -> Result<Table, Failure> {
        let bad = |why: String| Failure::run(format!("{name}: not a .safetensors file that can be read: {why}"));
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|e| bad(e.to_string()))?;
        let length = u64::from_le_bytes(length);
        if length > SAFETENSORS_HEADER_BYTES_MAX.min(file_bytes) {
            return Err(bad(format!("a header of {length} bytes")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(|e| bad(e.to_string()))?;
        // This checks the tensors against each other; the end of the file is checked below.
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| bad(e.to_string()))?;
        let (tensor, info) = choose(&name, &metadata, tensor)?;
        let name = format!("{name}, tensor {tensor}");
        let shape: Vec<u64> = info.shape.iter().map(|n| *n as u64).collect();
        let Some((&rows, shape)) = shape.split_first() else {
            return Err(Failure::run(format!("{name}: one number without a dimension has no rows")));
        };
        let row_bits = bits_of_row(shape, info.dtype.bitsize());
        let row = numpy_type(info.dtype, shape, row_bits);
        // The lengths of many tensors can add up to nearly 2^64: no file goes on there.
        let offset = (8 + length).saturating_add(info.data_offsets.0 as u64);
        Table { name, offset, rows, row_bytes: 0, row }.checked(row_bits, file_bytes)
    }

    /// The table with the bytes of a row, if there are rows and the file has all of them.
    fn checked(self, row_bits: Option<u64>, file_bytes: u64) -> Result<Table, Failure> {
        let name = &self.name;
        let row_bytes = row_bits.filter(|bits| bits.is_multiple_of(8)).and_then(|bits| u32::try_from(bits / 8).ok());
        let row_bytes = row_bytes
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| Failure::run(format!("{name}: a row must have 1 byte to 4 GiB, and whole bytes")))?;
        if self.rows == 0 {
            return Err(Failure::run(format!("{name} has no rows")));
        }
        let bytes = self.rows.checked_mul(row_bytes.into());
        let end = bytes.and_then(|bytes| bytes.checked_add(self.offset));
        if end.is_none_or(|end| end > file_bytes) {
            let text = format!(
                "{name}: the file is cut short: its header promises {} rows of {row_bytes} bytes from offset {} on, and it \
                 has {file_bytes} bytes",
                self.rows, self.offset
            );
            return Err(Failure::run(text));
        }
        Ok(Table { row_bytes, ..self })
    }

    pub fn bytes(&self) -> u64 {
        self.rows * u64::from(self.row_bytes)
    }

    /// An error for the first row number that the table does not have.
    pub fn check(&self, numbers: &[u64]) -> Result<(), Failure> {
        let Some(position) = numbers.iter().position(|row| *row >= self.rows) else { return Ok(()) };
        let (row, rows, last) = (numbers[position], report::count(self.rows), self.rows - 1);
        let name = &self.name;
        Err(Failure::run(format!("row number {row} at position {position}: {name} has {rows} rows, 0 to {last}")))
    }
}

fn plain(name: &str) -> DType {
    DType::new_scalar(name.parse().expect("a type string of NumPy's"))
}

fn bits_of_row(shape: &[u64], element_bits: usize) -> Option<u64> {
    shape.iter().try_fold(element_bits as u64, |bits, n| bits.checked_mul(*n))
}

/// The named tensor, or the only one that is a plain table.
fn choose(file: &str, metadata: &Metadata, wanted: Option<&str>) -> Result<(String, TensorInfo), Failure> {
    let names = metadata.offset_keys();
    let tensors = names.into_iter().filter_map(|name| Some((metadata.info(&name)?.clone(), name)));
    let all: Vec<(String, TensorInfo)> = tensors.map(|(info, name)| (name, info)).collect();
    let fits = |(name, info): &&(String, TensorInfo)| match wanted {
        Some(wanted) => name == wanted,
        None => info.shape.len() == 2,
    };
    match all.iter().filter(fits).collect::<Vec<_>>()[..] {
        [only] => Ok(only.clone()),
        ref several => {
            let why = match (wanted, several.len()) {
                (Some(name), _) => format!("{file} has no tensor {name}"),
                (None, n) => format!("{file} has {n} tensors with two dimensions: give --tensor NAME"),
            };
            let line = |(name, info): &(String, TensorInfo)| format!("\n  {name}  {} {:?}", info.dtype, info.shape);
            let list: String = all.iter().map(line).collect();
            Err(Failure::Usage(format!("{why}. It has:{list}")))
        }
    }
}

fn numpy_type(dtype: Dtype, shape: &[u64], row_bits: Option<u64>) -> RowType {
    let known = match dtype {
        Dtype::BOOL => Some("|b1"),
        Dtype::U8 => Some("|u1"),
        Dtype::I8 => Some("|i1"),
        Dtype::I16 => Some("<i2"),
        Dtype::U16 => Some("<u2"),
        Dtype::F16 => Some("<f2"),
        Dtype::I32 => Some("<i4"),
        Dtype::U32 => Some("<u4"),
        Dtype::F32 => Some("<f4"),
        Dtype::C64 => Some("<c8"),
        Dtype::F64 => Some("<f8"),
        Dtype::I64 => Some("<i8"),
        Dtype::U64 => Some("<u8"),
        _ => None,
    };
    let in_place_of = known.is_none().then(|| dtype.to_string());
    let shape = shape.to_vec();
    match (known, dtype.bitsize()) {
        (Some(name), _) => RowType { dtype: plain(name), shape, in_place_of },
        (None, 16) => RowType { dtype: plain("<u2"), shape, in_place_of },
        (None, 8) => RowType { dtype: plain("|u1"), shape, in_place_of },
        // Elements of a part of a byte: the bytes of the row.
        (None, _) => RowType { dtype: plain("|u1"), shape: vec![row_bits.unwrap_or(0) / 8], in_place_of },
    }
}
