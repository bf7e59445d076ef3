//! `/api/v1/openapi.json`: the JSON twins, made from the types of the models, and the reports of jobs, as OpenAPI 3.1.
//!
//! <https://spec.openapis.org/oas/v3.1.1.html>

mod report;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// What callers may rely on.
const STABILITY: &str = "Within `/api/v1` nothing is renamed or removed and no type changes; fields and addresses \
                         may be added, so ignore what you don't know.";

const TAG: &str = "pages";

/// A JSON twin, and where its types come from.
#[derive(Clone)]
pub(crate) struct Operation {
    /// The address of the page with the same data; `None` if there is none.
    pub(crate) page: Option<&'static str>,
    pub(crate) address: &'static str,
    /// The schema of its query and of its answer.
    pub(crate) schemas: fn(&mut SchemaGenerator) -> [Schema; 2],
}

pub(crate) fn schemas_of<Q: JsonSchema, M: JsonSchema>(
    generator: &mut SchemaGenerator,
) -> [Schema; 2] {
    [Q::json_schema(generator), generator.subschema_for::<M>()]
}

pub(crate) fn document(operations: &[Operation]) -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .with_transform(RecursiveTransform(describe_pairs))
        .for_serialize();
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for operation in operations {
        let [query, answer] = (operation.schemas)(&mut generator);
        let address = operation.address.replace("{*", "{");
        paths.insert(
            address.clone(),
            json!({ "get": described(operation, &address, &query, &answer) }),
        );
    }
    paths.insert(report::ADDRESS.to_owned(), json!({ "post": report::described(&mut generator) }));
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.1",
        "info": {
            "title": "CRCR HUD", "version": env!("CARGO_PKG_VERSION"),
            "summary": "The data of the HUD's pages, and the reports of jobs",
            "description": STABILITY,
            "contact": { "name": "The operators of this relay" },
            "license": { "name": "BSD-3-Clause", "identifier": "BSD-3-Clause" },
        },
        "servers": [{ "url": "/" }],
        "tags": [
            { "name": TAG, "description": "What the pages show" },
            { "name": report::TAG, "description": "What jobs send" },
        ],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": { "Problem": problem() },
            "securitySchemes": { (report::SECURITY): {
                "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                "description": "The OIDC token of the job, from GitHub or Buildkite, for the relay's audience",
            } },
        },
    })
}

fn problem() -> Value {
    json!({
        "description": "What is wrong, and what to do",
        "content": { "application/json": { "schema": {
            "type": "object", "required": ["detail"],
            "properties": { "detail": { "type": "string" } },
        } } },
    })
}

/// Linters ask for `items` of each array, even of a pair, which has `prefixItems` and `maxItems` instead.
fn describe_pairs(schema: &mut Schema) {
    if schema.get("prefixItems").is_some() && schema.get("items").is_none() {
        schema.insert("items".to_owned(), json!({}));
    }
}

fn described(operation: &Operation, address: &str, query: &Schema, answer: &Schema) -> Value {
    let summary = match operation.page {
        Some(page) => format!("The data of the page `{page}`"),
        None => "Data without a page".to_owned(),
    };
    let problem = json!({ "$ref": "#/components/responses/Problem" });
    json!({
        "operationId": operation_id(address),
        "summary": summary,
        "description": query.get("description").unwrap_or(&json!(summary)),
        "tags": [TAG],
        "parameters": parameters(address, query),
        "responses": {
            "200": {
                "description": "The data",
                "headers": { "ETag": { "schema": { "type": "string" } } },
                "content": { "application/json": { "schema": answer } },
            },
            "304": { "description": "The client has it already, as `If-None-Match` says" },
            "400": problem, "404": problem, "503": problem,
        },
    })
}

/// A name for generated clients, such as `get_api_v1_pulls_number`.
fn operation_id(address: &str) -> String {
    let words = address.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    format!("get_{}", words.collect::<Vec<_>>().join("_"))
}

fn parameters(address: &str, query: &Schema) -> Vec<Value> {
    let names = address.split('{').skip(1).filter_map(|part| part.split('}').next());
    let of_path = names.map(|name| {
        let kind = if ["number", "job"].contains(&name) { "integer" } else { "string" };
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } })
    });
    let of_query = query.get("properties").and_then(Value::as_object);
    let of_query = of_query.into_iter().flatten().map(|(name, schema)| {
        json!({ "name": name, "in": "query", "required": false, "schema": schema })
    });
    of_path.chain(of_query).collect()
}
