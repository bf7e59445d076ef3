//! What all enums with names have in common, and all names that compare ignoring case.

/// Gives each variant its name. Where serde writes the enum, `rename_all` has to agree.
#[macro_export]
macro_rules! names {
    ($kind:ident { $($variant:ident $name:literal),+ $(,)? }) => {
        impl $kind {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == name)
            }
        }
    };
}

/// The traits of a text that `new` checks. It compares ignoring case, and keeps its spelling in the field `$text`.
macro_rules! text_ignoring_case {
    ($name:ident.$text:tt, $error:ty) => {
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.$text.eq_ignore_ascii_case(&other.$text)
            }
        }

        impl Eq for $name {}

        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                $crate::repo::hash_ignoring_case(&self.$text, state);
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.$text)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.$text, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.$text.into()
            }
        }
    };
}
