//! Reads the list `backends` of a configuration file.
//!
//! The type of an entry decides how the rest of it is read. serde's own tagged enums lose the lines of what they read; so the file is read
//! once for the types, and then once more for each entry, where all but that entry is skipped.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use crate::backend::configuration::Configuration;

use super::config::BackendConfig;

/// The `type` of each entry, one of `known`; `None` where the file has no list.
pub(super) fn kinds(file: &str, known: &[&'static str]) -> Result<Option<Vec<&'static str>>, serde_yaml_ng::Error> {
    File(Kinds(known)).deserialize(serde_yaml_ng::Deserializer::from_str(file))
}

/// The entry at `index`, without its `type`.
pub(super) fn entry<C: Configuration>(file: &str, index: usize) -> Result<BackendConfig, serde_yaml_ng::Error> {
    let read = File(Nth(index, Entry::<C>(PhantomData)));
    let config = read.deserialize(serde_yaml_ng::Deserializer::from_str(file))?.flatten();
    config.map(BackendConfig::new).ok_or_else(|| serde_yaml_ng::Error::custom(format!("backends[{index}] is not there")))
}

/// The list of the file, read by what is inside.
struct File<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for File<S> {
    type Value = Option<S::Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for File<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a configuration: a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut seed, mut list) = (Some(self.0), None);
        while let Some(key) = map.next_key::<String>()? {
            match seed.take_if(|_| key == "backends") {
                Some(seed) => list = map.next_value_seed(Optional(seed))?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(list)
    }
}

/// `backends:` without anything is none.
struct Optional<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Optional<S> {
    type Value = Option<S::Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Optional<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of backends")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(deserializer).map(Some)
    }
}

/// The type of each entry of the list.
struct Kinds<'a>(&'a [&'static str]);

impl<'de> DeserializeSeed<'de> for Kinds<'_> {
    type Value = Vec<&'static str>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Kinds<'_> {
    type Value = Vec<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of backends")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut kinds = Vec::new();
        while let Some(kind) = list.next_element_seed(KindOfEntry(self.0))? {
            kinds.push(kind);
        }
        Ok(kinds)
    }
}

struct KindOfEntry<'a>(&'a [&'static str]);

impl<'de> DeserializeSeed<'de> for KindOfEntry<'_> {
    type Value = &'static str;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for KindOfEntry<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a backend: a map with name and type")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<&'static str, A::Error> {
        let mut kind = None;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "type" if kind.is_some() => return Err(A::Error::duplicate_field("type")),
                "type" => kind = Some(map.next_value_seed(KindOfText(self.0))?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        kind.ok_or_else(|| A::Error::missing_field("type"))
    }
}

struct KindOfText<'a>(&'a [&'static str]);

impl<'de> DeserializeSeed<'de> for KindOfText<'_> {
    type Value = &'static str;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KindOfText<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a type of backends")
    }

    fn visit_str<E: serde::de::Error>(self, kind: &str) -> Result<&'static str, E> {
        self.0.iter().find(|known| **known == kind).copied().ok_or_else(|| {
            let known: Vec<String> = self.0.iter().map(|known| format!("`{known}`")).collect();
            // As serde words it.
            E::custom(format!("unknown variant `{kind}`, expected one of {}", known.join(", ")))
        })
    }
}

/// One entry of the list, read by what is inside; the others are skipped.
struct Nth<S>(usize, S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Nth<S> {
    type Value = Option<S::Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Nth<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of backends")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            list.next_element::<IgnoredAny>()?;
        }
        let entry = list.next_element_seed(self.1)?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(entry)
    }
}

/// An entry without its `type`, which was read before.
struct Entry<C>(PhantomData<C>);

impl<'de, C: Configuration> DeserializeSeed<'de> for Entry<C> {
    type Value = C;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<C, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, C: Configuration> Visitor<'de> for Entry<C> {
    type Value = C;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a backend: a map with name and type")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<C, A::Error> {
        C::deserialize(MapAccessDeserializer::new(WithoutType(map)))
    }
}

struct WithoutType<M>(M);

impl<'de, M: MapAccess<'de>> MapAccess<'de> for WithoutType<M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, mut seed: K) -> Result<Option<K::Value>, M::Error> {
        loop {
            match self.0.next_key_seed(Key(seed))? {
                None => return Ok(None),
                Some(Found::Key(key)) => return Ok(Some(key)),
                Some(Found::Type(unused)) => {
                    seed = unused;
                    self.0.next_value::<IgnoredAny>()?;
                }
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        self.0.next_value_seed(seed)
    }
}

/// A key that is read while the deserializer stands at it, so that an error has its line.
struct Key<K>(K);

enum Found<K, T> {
    Type(K),
    Key(T),
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<K> {
    type Value = Found<K, K::Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for Key<K> {
    type Value = Found<K, K::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<Self::Value, E> {
        match key {
            "type" => Ok(Found::Type(self.0)),
            _ => self.0.deserialize(key.into_deserializer()).map(Found::Key),
        }
    }
}
