//! The public items of the crate and their documentation, from its sources.

use std::path::{Path, PathBuf};
use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, Expr, Fields, Ident, ImplItem, Item, ItemConst, ItemFn, ItemMod, ItemType, Lit, LitStr, Meta, Token,
    UseTree, Visibility,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Module,
    Constant,
    /// A structure with named fields.
    Structure,
    /// A number with a type of its own, an enum of numbers, or a type that only holds constants.
    Code,
    /// Private ones too: their bytes are not private.
    Field,
    Function,
    /// A name for another type.
    Alias,
}

pub struct Found {
    /// As a user of the crate writes it, without the crate's name: `Opcode::READ`.
    pub path: String,
    pub what: What,
    pub docs: Vec<String>,
}

/// Everything in the order of the sources: a module's own entry comes before its items.
pub fn found() -> Vec<Found> {
    let mut reader = Reader { found: Vec::new(), lifted: Vec::new() };
    reader.file(&folder().join("lib.rs"), "", "");
    reader.found
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

struct Reader {
    found: Vec<Found>,
    /// What the crate re-exports: `staged::Command`.
    lifted: Vec<String>,
}

impl Reader {
    /// `module` is the file's module, "" for the crate; items stand under `prefix`, the public part of that.
    fn file(&mut self, path: &Path, module: &str, prefix: &str) {
        let text = std::fs::read_to_string(path).unwrap();
        let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.add(&format!("mod {module}"), What::Module, &file.attrs);
        let uses = file.items.iter().filter_map(|item| if let Item::Use(item) = item { Some(item) } else { None });
        uses.filter(|item| is_public(&item.vis)).for_each(|item| self.lifted.extend(used("", &item.tree)));
        // What a file has itself comes before its modules' files.
        let (files, own): (Vec<&Item>, Vec<&Item>) =
            file.items.iter().partition(|item| matches!(item, Item::Mod(ItemMod { content: None, .. })));
        own.into_iter().chain(files).for_each(|item| self.item(item, prefix));
    }

    /// Under which path users have an item.
    fn path(&self, prefix: &str, name: &Ident) -> String {
        let full = join(prefix, name);
        if self.lifted.contains(&full) { name.to_string() } else { full }
    }

    fn add(&mut self, path: &str, what: What, attributes: &[Attribute]) {
        self.found.push(Found { path: path.to_owned(), what, docs: docs(attributes) });
    }

    fn item(&mut self, item: &Item, prefix: &str) {
        let path = |name: &Ident| self.path(prefix, name);
        match item {
            Item::Const(ItemConst { vis: Visibility::Public(_), ident, attrs, .. }) => {
                self.add(&path(ident), What::Constant, attrs);
            }
            Item::Fn(ItemFn { vis: Visibility::Public(_), sig, attrs, .. }) => {
                self.add(&path(&sig.ident), What::Function, attrs);
            }
            Item::Type(ItemType { vis: Visibility::Public(_), ident, attrs, .. }) => {
                self.add(&path(ident), What::Alias, attrs);
            }
            Item::Struct(item) if is_public(&item.vis) => self.structure(item, &path(&item.ident)),
            Item::Enum(item) if is_public(&item.vis) => {
                let path = path(&item.ident);
                self.add(&path, What::Code, &item.attrs);
                for variant in &item.variants {
                    self.add(&join(&path, &variant.ident), What::Constant, &variant.attrs);
                }
            }
            Item::Mod(item) => self.module(item, prefix),
            Item::Impl(item) if item.trait_.is_none() => {
                let syn::Type::Path(of) = &*item.self_ty else { panic!("an impl of no plain type") };
                let of = self.path(prefix, &of.path.segments.last().unwrap().ident);
                item.items.iter().for_each(|item| self.associated(item, &of));
            }
            Item::Macro(item) if item.ident.is_none() => self.codes(item, prefix),
            Item::Static(item) if is_public(&item.vis) => panic!("{}: no static is expected here", item.ident),
            Item::Union(item) if is_public(&item.vis) => panic!("{}: no union is expected here", item.ident),
            _ => {}
        }
    }

    fn structure(&mut self, item: &syn::ItemStruct, path: &str) {
        let Fields::Named(fields) = &item.fields else { return self.add(path, What::Code, &item.attrs) };
        self.add(path, What::Structure, &item.attrs);
        for field in &fields.named {
            let name = join(path, field.ident.as_ref().unwrap());
            self.add(&name, What::Field, &field.attrs);
        }
    }

    fn module(&mut self, item: &ItemMod, prefix: &str) {
        // What is public in a private module is public one level up: without a `pub use` it would not be, and an item
        // that nobody can name cannot be listed.
        let prefix = if is_public(&item.vis) { join(prefix, &item.ident) } else { prefix.to_owned() };
        match &item.content {
            Some(_) if !is_public(&item.vis) => {}
            Some((_, items)) => {
                self.add(&format!("mod {}", item.ident), What::Module, &item.attrs);
                items.iter().for_each(|item| self.item(item, &prefix));
            }
            None => self.file(&folder().join(format!("{}.rs", item.ident)), &item.ident.to_string(), &prefix),
        }
    }

    fn associated(&mut self, item: &ImplItem, of: &str) {
        match item {
            ImplItem::Const(item) if is_public(&item.vis) => {
                self.add(&join(of, &item.ident), What::Constant, &item.attrs);
            }
            ImplItem::Fn(item) if is_public(&item.vis) => {
                self.add(&join(of, &item.sig.ident), What::Function, &item.attrs);
            }
            _ => {}
        }
    }

    /// The list of the status codes, which is the only macro.
    fn codes(&mut self, item: &syn::ItemMacro, prefix: &str) {
        assert!(item.mac.path.is_ident("statuses"), "an unknown macro may declare items: teach this test to read it");
        let codes: Codes = item.mac.parse_body().unwrap();
        let of = "Status";
        assert!(prefix.is_empty(), "{prefix}::{of}");
        for (attributes, name) in codes.0 {
            self.add(&join(of, &name), What::Constant, &attributes);
        }
        self.add(&join(of, "ALL"), What::Constant, &[]);
    }
}

/// `NAME = code, "text";` and so on.
struct Codes(Vec<(Vec<Attribute>, Ident)>);

impl Parse for Codes {
    fn parse(input: ParseStream<'_>) -> syn::Result<Codes> {
        let mut codes = Vec::new();
        while !input.is_empty() {
            let attributes = input.call(Attribute::parse_outer)?;
            codes.push((attributes, input.parse()?));
            input.parse::<Token![=]>()?;
            input.parse::<Expr>()?;
            input.parse::<Token![,]>()?;
            input.parse::<LitStr>()?;
            input.parse::<Token![;]>()?;
        }
        Ok(Codes(codes))
    }
}

/// The paths that a `pub use` names.
fn used(prefix: &str, tree: &UseTree) -> Vec<String> {
    match tree {
        UseTree::Path(path) => used(&join(prefix, &path.ident), &path.tree),
        UseTree::Name(name) => vec![join(prefix, &name.ident)],
        UseTree::Group(group) => group.items.iter().flat_map(|tree| used(prefix, tree)).collect(),
        UseTree::Rename(_) | UseTree::Glob(_) => panic!("{prefix}: items keep their names, and are named one by one"),
    }
}

fn join(prefix: &str, name: impl ToString) -> String {
    let name = name.to_string();
    if prefix.is_empty() { name } else { format!("{prefix}::{name}") }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The lines, without the blank in front of each.
fn docs(attributes: &[Attribute]) -> Vec<String> {
    let line = |attribute: &Attribute| {
        let Meta::NameValue(meta) = &attribute.meta else { return None };
        let Expr::Lit(value) = &meta.value else { return None };
        let (true, Lit::Str(text)) = (meta.path.is_ident("doc"), &value.lit) else { return None };
        let text = text.value();
        Some(text.strip_prefix(' ').unwrap_or(&text).trim_end().to_owned())
    };
    attributes.iter().filter_map(line).collect()
}
