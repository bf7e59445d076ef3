//! The fields of a report's body that are used. Most of a body is the webhook that was dispatched: it is looked over
//! for what isn't JSON and for its depth, without keeping any of it.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{BodyError, DEPTH};

/// Fields of the body that are kept.
const KEPT: [&str; 4] = ["workflow", "event_type", "delivery_id", "callback_token"];
/// How many fields of `workflow` are kept, and how many values within these: a thousand failed tests have 7,000. A value
/// takes up to a hundred times its text in memory, and the body is read before it is known who has sent it.
const KEPT_FIELDS: usize = 1000;
const KEPT_VALUES: usize = 16_000;
/// Stands among the fields if something was left out.
pub(crate) const LEFT_OUT: &str = "values left out";

/// The used fields of an object. If a field is there twice, the last one counts, as for the deployed relay. Of `payload`
/// only `head_sha` is kept, as `payload.head_sha`.
///
/// Fails with [`BodyError::NotJson`] or [`BodyError::TooDeep`].
pub(crate) fn read(body: &[u8]) -> Result<HashMap<String, Value>, BodyError> {
    let (deepest, left) = (Cell::new(1), Cell::new(KEPT_VALUES));
    let mut json = serde_json::Deserializer::from_slice(body);
    let fields = ReportBody { deepest: &deepest, left: &left }.deserialize(&mut json);
    let fields = fields.and_then(|fields| json.end().map(|()| fields));
    // serde_json itself stops at twice the depth.
    let is_limit = |error: &serde_json::Error| error.to_string().starts_with("recursion limit");
    match fields {
        Ok(fields) if deepest.get() <= DEPTH => Ok(fields),
        Err(error) if deepest.get() <= DEPTH && !is_limit(&error) => Err(BodyError::NotJson),
        _ => Err(BodyError::TooDeep),
    }
}

struct ReportBody<'a> {
    deepest: &'a Cell<usize>,
    /// How many values may still be kept.
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for ReportBody<'_> {
    type Value = HashMap<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReportBody<'_> {
    type Value = HashMap<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let inner = UnkeptValue { depth: 2, deepest: self.deepest, head_sha: None };
        let mut fields = HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if KEPT.contains(&&*name) {
                let value = map.next_value_seed(KeptValue { unkept: inner, left: self.left })?;
                fields.insert(name, value);
            } else if name == "payload" {
                let head_sha = Cell::new(Value::Null);
                let head_sha_of = Some((&head_sha, self.left));
                map.next_value_seed(UnkeptValue { head_sha: head_sha_of, ..inner })?;
                fields.insert("payload.head_sha".to_owned(), head_sha.take());
            } else {
                map.next_value_seed(inner)?;
            }
        }
        if self.left.get() == 0 {
            fields.insert(LEFT_OUT.to_owned(), Value::Bool(true));
        }
        Ok(fields)
    }
}

/// The value of a text within a field; an error if it has too many values.
pub(crate) fn value_of(text: &str) -> Result<Value, String> {
    let (deepest, left) = (Cell::new(1), Cell::new(KEPT_VALUES));
    // The text itself stands in a field.
    let unkept = UnkeptValue { depth: 3, deepest: &deepest, head_sha: None };
    let mut json = serde_json::Deserializer::from_str(text);
    let value = KeptValue { unkept, left: &left }.deserialize(&mut json);
    let value = value.and_then(|value| json.end().map(|()| value));
    match value {
        Ok(_) if left.get() == 0 => Err(format!("it has more than {KEPT_VALUES} values")),
        value => value.map_err(|error| error.to_string()),
    }
}

fn is_single(value: &Value) -> bool {
    !value.is_array() && !value.is_object()
}

/// A value that is kept, as far as there are not too many.
#[derive(Clone, Copy)]
struct KeptValue<'a> {
    /// What becomes of it otherwise.
    unkept: UnkeptValue<'a>,
    left: &'a Cell<usize>,
}

impl<'a> KeptValue<'a> {
    /// For what stands in this list or object.
    fn inner<E: Error>(self) -> Result<Self, E> {
        Ok(Self { unkept: self.unkept.inner()?, ..self })
    }

    fn takes_one(self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl<'de> DeserializeSeed<'de> for KeptValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for KeptValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut values = vec![];
        while self.takes_one() {
            let Some(value) = list.next_element_seed(inner)? else { return Ok(values.into()) };
            values.push(value);
        }
        while list.next_element_seed(inner.unkept)?.is_some() {}
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let inner = self.inner()?;
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let is_field = self.unkept.depth == 2;
            let is_kept = if is_field { fields.len() < KEPT_FIELDS } else { self.takes_one() };
            if is_kept {
                let value = map.next_value_seed(inner)?;
                // A part of a list or an object would read as if it were all.
                let is_cut = is_field && self.left.get() == 0 && !is_single(&value);
                fields.insert(name, if is_cut { Value::Null } else { value });
            } else {
                map.next_value_seed(inner.unkept)?;
            }
        }
        Ok(fields.into())
    }
}

/// A value that is checked and not kept. `IgnoredAny` would let numbers and texts pass that a reader of the forwarded
/// body refuses.
#[derive(Clone, Copy)]
struct UnkeptValue<'a> {
    /// The depth that an array or object in this place has.
    depth: usize,
    deepest: &'a Cell<usize>,
    /// Where the field `head_sha` of this object goes, and how many values may still be kept.
    head_sha: Option<(&'a Cell<Value>, &'a Cell<usize>)>,
}

impl<'de> DeserializeSeed<'de> for UnkeptValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UnkeptValue<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while list.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while let Some(is_head_sha) = map.next_key_seed(IsHeadSha)? {
            match self.head_sha {
                Some((head_sha, left)) if is_head_sha => {
                    head_sha.set(map.next_value_seed(KeptValue { unkept: inner, left })?);
                }
                _ => map.next_value_seed(inner)?,
            }
        }
        Ok(())
    }
}

impl UnkeptValue<'_> {
    fn inner<E: Error>(self) -> Result<Self, E> {
        self.deepest.set(self.deepest.get().max(self.depth));
        if self.depth > DEPTH {
            return Err(E::custom("too deep"));
        }
        Ok(Self { depth: self.depth + 1, head_sha: None, ..self })
    }
}

/// Whether a key is `head_sha`.
struct IsHeadSha;

impl<'de> DeserializeSeed<'de> for IsHeadSha {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for IsHeadSha {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == "head_sha")
    }
}
