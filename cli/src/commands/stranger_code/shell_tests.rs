//! Ways in which a script of a shell runs text of strangers without `eval` and a variable beside each other.

use super::tests::{codes, with_rights};

/// A step with texts of a comment as `BODY` and `TITLE`, and its number as `ID`.
fn found(script: &str) -> Vec<&'static str> {
    let lines: String = script.lines().map(|line| format!("          {line}\n")).collect();
    let env = "        env: {BODY: '${{ github.event.comment.body }}', TITLE: '${{ github.event.issue.title }}', \
               ID: '${{ github.event.comment.id }}'}\n";
    codes(&with_rights("issue_comment", &format!("      - run: |\n{lines}{env}")))
}

fn assert_run(scripts: &[&str]) {
    let wrong = scripts.iter().filter(|script| found(script) != ["event-as-code"]);
    assert_eq!(wrong.collect::<Vec<_>>(), [&""; 0]);
}

fn assert_left_alone(scripts: &[&str]) {
    let wrong = scripts.iter().filter(|script| !found(script).is_empty());
    assert_eq!(wrong.collect::<Vec<_>>(), [&""; 0]);
}

#[test]
fn function_that_runs_what_it_is_given_is_told() {
    assert_run(&[
        "run() { eval \"$1\"; }\nrun \"$BODY\"",
        "run () { eval \"${1}\"; }\nrun \"$BODY\"",
        "run() {\n  eval \"$@\"\n}\nrun make \"$BODY\"",
        "run() { \"$@\"; }\nrun $BODY",
        "function run { bash -c \"$*\"; }\nrun \"make $BODY\"",
        "function run() {\n  eval \"$2\"\n}\nrun ID \"$BODY\"",
        "run() {\n  local command=\"$1\"\n  eval \"$command\"\n}\nrun \"$BODY\"",
        "run() {\n  shift\n  eval \"$1\"\n}\nrun ID \"$BODY\"",
        "run() { local tries=$1; shift; \"$@\"; }\nrun 3 \"$BODY\"",
        "run() { while [ $# -gt 2 ]; do shift; done; eval \"$1\"; }\nrun a b \"$BODY\" c",
        "run() { for i in 1 2; do { eval \"$1\"; }; done; make; eval \"$1\"; }\nrun \"$BODY\"",
        "run() { echo \"$(eval \"$1\")\"; }\nrun \"$BODY\"",
        "inner() { eval \"$1\"; }\nouter() { inner \"$1\"; }\nouter \"$BODY\"",
        "set -- $BODY\neval \"$1\"",
        "bash -c 'eval \"$1\"' _ \"$BODY\"",
        "bash -c 'eval \"$0\"' \"$BODY\"",
        "bash -s -- \"$BODY\" <<'EOF'\neval \"$1\"\nEOF",
        "python3 -c 'import os, sys; os.system(sys.argv[1])' \"$BODY\"",
        "node -e 'eval(process.argv[1])' \"$BODY\"",
        "text=make\ntext+=\" $BODY\"\neval \"$text\"",
        "all=(\"$BODY\" -k)\n\"${all[@]}\"",
        "all=()\nall+=(\"$BODY\")\n\"${all[@]}\"",
    ]);
    assert_left_alone(&[
        "say() { echo \"::notice::$1\"; }\nsay \"$BODY\"",
        "run() { eval \"$1\"; }\nrun make\necho \"$BODY\"",
        "run() { eval \"$1\"; }\nsay() { echo \"$1\"; }\nrun make\nsay \"$BODY\"",
        "run() { eval \"$1\"; }\nrun make \"$BODY\"",
        "retry() { for i in 1 2 3; do \"$@\" && return; done; }\nretry gh pr comment 1 --body \"$BODY\"",
        "retry() {\n  local tries=$1; shift\n  for i in $(seq $tries); do \"$@\" && return; done\n}\nretry 3 gh \
         pr comment 1 --body \"$BODY\"",
        "words=($BODY)\nfor i in \"${!words[@]}\"; do echo \"${words[$i]}\"; done",
        "size=$(wc -c <<< \"$BODY\")\nif ((size > 99)); then make; fi",
        "all=(gh pr comment 1 --body \"$BODY\")\n\"${all[@]}\"",
        "all=(gh pr comment 1)\nall+=(--body \"$BODY\")\n\"${all[@]}\"",
        "set -euo pipefail\necho \"$BODY\"",
        "awk \"{ print \\$1 }\" file; echo \"$BODY\"",
        "bash -c 'gh pr comment 1 --body \"$1\"' _ \"$BODY\"",
    ]);
}

#[test]
fn text_that_bash_takes_for_a_number_or_a_name_is_told() {
    assert_run(&[
        "echo \"${all[$BODY]}\"",
        "echo \"${all[${BODY}]}\"",
        "echo \"${all[BODY]}\"",
        "all[$BODY]=1",
        "all[$BODY]+=1",
        "echo \"${text:$BODY}\"",
        "echo \"${text:0:$BODY}\"",
        "echo \"${all[@]:BODY}\"",
        "echo \"${!BODY}\"",
        "echo \"${BODY@P}\"",
        "unset \"all[$BODY]\"",
        "[[ -v $BODY ]] && echo yes",
        "if test -v \"$BODY\"; then echo yes; fi",
        "[ -v \"$BODY\" ] && echo yes",
        "printf -v \"$BODY\" x",
        "read -r \"$BODY\" < file",
        "mapfile -t -c 1 -C \"$BODY\" all < file",
        "declare -n name=$BODY",
        "local -n name=\"$BODY\"",
        "declare -i count\ncount=$BODY",
        "echo $[BODY + 1]",
        "f() { echo $(($1 + 1)); }\nf \"$BODY\"",
        "echo $(( $(cat <<< \"$BODY\") + 1 ))",
    ]);
    assert_left_alone(&[
        "declare -A all=([a]=1)\necho \"${all[$BODY]}\"\nall[$BODY]=2",
        "echo \"${BODY:0:72}\" \"${BODY: -3}\" \"${BODY:-none}\" \"${text:-$BODY}\"",
        "echo \"${#BODY}\" \"${BODY//[^a-z]/_}\" \"${all[@]}\" \"${!all[@]}\"",
        "echo $(( ${#BODY} + 1 ))",
        "(( ${#TITLE} > 72 )) && exit 1",
        "echo $(( $(wc -l <<< \"$BODY\") + 1 ))",
        "unset BODY",
        "[[ -v BODY ]] && echo yes",
        "read -r -p \"$BODY\" answer < file",
        "read -r first rest < <(echo \"$BODY\")\necho \"$first\"",
        "declare -i count\ncount=$ID\necho \"$BODY\"",
        "local -r text=\"$BODY\"",
        "[ \"$BODY\" -eq 3 ]",
        "echo \"${all[$ID]} $BODY\"",
    ]);
}

#[test]
fn program_that_prints_a_variable_of_strangers_to_a_shell_is_told() {
    assert_run(&[
        "envsubst < deploy.in > deploy.sh\nbash deploy.sh",
        "envsubst '$BODY $ID' < deploy.in | bash",
        "printenv BODY | bash",
        "printenv TITLE > deploy.sh; bash deploy.sh",
        "env | grep BODY | cut -d= -f2- | bash",
        "jq -rn 'env.BODY' > deploy.sh\nbash deploy.sh",
        "jq -rn '$ENV.BODY' | sh",
        "awk 'BEGIN { print ENVIRON[\"BODY\"] }' | bash",
        "awk 'BEGIN { system(ENVIRON[\"BODY\"]) }'",
        "awk -v text=\"$BODY\" 'BEGIN { system(text) }'",
        "echo \"$BODY\" | awk '{ system($0) }'",
        "echo \"$BODY\" | awk '{ print | \"sh\" }'",
        "awk -e \"$BODY\" file",
        "perl -pe 's/X/$ENV{BODY}/' deploy.in > deploy.sh; bash deploy.sh",
        "python3 -c 'import os; print(os.environ[\"BODY\"])' | bash",
        "python3 - <<'EOF' > deploy.sh\nimport os\nprint(os.environ[\"BODY\"])\nEOF\nbash deploy.sh",
        "dd of=deploy.sh <<< \"$BODY\"; bash deploy.sh",
        "echo \"$BODY\" | sponge deploy.sh\nbash deploy.sh",
        "echo \"$BODY\" | install -m 755 /dev/stdin deploy.sh\n./deploy.sh",
    ]);
    assert_left_alone(&[
        "envsubst < page.in > page.md\ngh pr comment 1 --body-file page.md",
        "envsubst '$ID' < deploy.in | bash\necho \"$BODY\"",
        "envsubst '$TITLE' < env.in >> \"$GITHUB_ENV\"",
        "printenv ID | bash",
        "jq -n '{text: env.BODY}' | curl -d @- https://x",
        "jq -n 'env.BODY' >> \"$GITHUB_OUTPUT\"; echo a=1 >> \"$GITHUB_OUTPUT\"",
        "python3 -c 'import os; print(os.environ[\"BODY\"])' > page.md",
        "node -e 'console.log(`text: ${process.env.BODY}`)'",
        "awk 'BEGIN { print ENVIRON[\"BODY\"] }'",
        "awk 'BEGIN { system(\"date\") }'; echo \"$BODY\"",
    ]);
}

#[test]
fn word_of_a_stranger_that_a_program_takes_for_an_option_or_a_package_is_told() {
    assert_run(&[
        "npm install \"$BODY\"",
        "pip install -r \"$BODY\"",
        "pip3 install -q --index-url=$BODY app",
        "npm ci --registry \"$BODY\"",
        "tar -xf a.tar --to-command \"$BODY\"",
        "ssh -o \"$BODY\" host uptime",
        "find . -name '*.txt' -exec \"$BODY\" {} \\;",
        "find . -exec sh -c \"$BODY\" \\;",
        "echo \"$BODY\" | xargs pip install",
        "echo \"$BODY\" | xargs -n 1 npm install",
        "echo \"$BODY\" | xargs go run",
        "npm i \"app@$BODY\"",
        "npm run \"$BODY\"",
        "npx \"$BODY\"",
        "npx -y $BODY --all",
        "yarn add ${BODY#/add }",
        "pip install \"$BODY\"",
        "python3 -m pip install -q $BODY",
        "uv pip install \"$BODY\"",
        "pip install app==$BODY",
        "sudo apt-get install -y $BODY",
        "cargo test $BODY",
        "cargo \"$BODY\"",
        "go test \"$BODY\"",
        "pytest $BODY",
        "python -m pytest \"$BODY\"",
        "pytest -k $BODY",
        "echo file | xargs $BODY",
        "xargs -n1 \"$BODY\" < file",
        "tar -cf all.tar \"$BODY\"",
        "tar cf all.tar \"$BODY\"",
        "pipx run --spec \"$BODY\" app",
        "rsync -a \"$BODY\" host:/srv",
        "ssh \"$BODY\" uptime",
        "git grep \"$BODY\"",
        "find . -name $BODY",
        "curl -sSL $BODY",
        "wget $BODY",
        "docker build $BODY .",
    ]);
    assert_left_alone(&[
        "npm run lint -- \"$BODY\"",
        "pip install -r \"$ID.txt\"; echo \"$BODY\"",
        "pip install -r \"requirements-$BODY.txt\"",
        "pip install --log \"$BODY\" app",
        "find . -name \"$BODY\" -exec cat {} \\;",
        "echo \"$BODY\" | xargs",
        "echo \"$BODY\" | xargs echo",
        "echo \"$BODY\" | xargs -I{} gh label create {}",
        "echo \"$BODY\" | xargs -I{} curl https://x/{}",
        "echo \"$BODY\" | xargs npm run lint",
        "echo \"$BODY\" | xargs pip --version",
        "npx commitlint --from \"$BODY\"",
        "npm version 1.0.0 -m \"$BODY\"",
        "pip install \"app==$BODY\"",
        "pip install app==$ID; echo \"$BODY\"",
        "cargo test -- \"$BODY\"",
        "cargo test --features \"$BODY\"",
        "pytest -k \"$BODY\"",
        "xargs -I{} echo {} < file; echo \"$BODY\"",
        "tar -cf all.tar -- \"$BODY\"",
        "tar -xf \"$BODY\"",
        "tar czf \"$BODY.tgz\" dist",
        "go run ./tool \"$BODY\"",
        "pipx run app \"$BODY\"",
        "ssh -i key -p \"$ID\" host uptime; echo \"$BODY\"",
        "git grep -e \"$BODY\"",
        "git commit -m $TITLE",
        "git log --author \"$BODY\"",
        "find . -name \"$BODY\"",
        "curl -sS -d \"$BODY\" https://x",
        "curl -X POST -d \"text=$BODY\" https://x",
        "docker run --rm -e TEXT=\"$BODY\" alpine true",
    ]);
}

#[test]
fn package_that_is_installed_of_a_strangers_commit_is_its_code() {
    let is_strangers = |script: &str| {
        let env = "        env: {N: '${{ github.event.number }}', SHA: '${{ github.event.pull_request.head.sha }}'}\n";
        let step = format!("      - run: |\n          {script}\n{env}");
        codes(&with_rights("pull_request_target", &step)).contains(&"token-exposed")
    };
    for script in [
        "npm i https://pkg.pr.new/app@$SHA && npm test",
        "pnpm add \"https://pkg.pr.new/a/app@$N\"",
        "sudo npx -y https://pkg.pr.new/app@${{ github.event.pull_request.head.sha }}",
        "npx degit a/b#$SHA app && make",
        "yarn add a/b#$SHA",
        "npm install git+ssh://git@github.com/a/b.git#$SHA",
        "python3 -m pip install -q \"git+https://github.com/a/b@$SHA\"",
        "uvx --from git+https://github.com/a/b@$SHA app",
        "go install github.com/a/b/cmd/app@$SHA",
        "go run github.com/a/b/cmd/app@$SHA --all",
        "cargo install --git https://github.com/a/b --rev $SHA",
        "terraform init -from-module=github.com/a/b?ref=$SHA",
    ] {
        assert!(is_strangers(script), "{script}");
    }
    for script in [
        "gh pr comment $N --body \"Try npm i https://pkg.pr.new/app@$SHA\"",
        "gh pr comment $N --body \"Try \\`npm i https://pkg.pr.new/app@$SHA\\`\"",
        "echo \"pip install git+https://github.com/a/b@$SHA\" >> $GITHUB_STEP_SUMMARY",
        "npx danger ci --url https://github.com/a/b/pull/$N",
        "npm i app@1 && gh api repos/a/b/statuses/$SHA",
        "npm i app@0.0.0-$SHA",
        "go run ./tool --url https://github.com/a/b/pull/$N",
    ] {
        assert!(!is_strangers(script), "{script}");
    }
}

#[test]
fn text_of_strangers_in_a_statement_for_a_database_or_another_language_is_told() {
    assert_run(&[
        "lua -e \"print('$BODY')\"",
        "lua -e 'os.execute(os.getenv(\"BODY\"))'",
        "Rscript -e \"print('$BODY')\"",
        "Rscript -e 'system(Sys.getenv(\"BODY\"))'",
        "julia -e \"$BODY\"",
        "fish -c \"$BODY\"",
        "perl -e 'system($ARGV[0])' \"$BODY\"",
        "ruby -e 'system(ARGV[0])' \"$BODY\"",
        "php -r 'system($argv[1]);' \"$BODY\"",
        "psql -c \"insert into t values ('$BODY')\"",
        "psql -h host -U ci -tAc \"$BODY\"",
        "psql \"$URL\" --command=\"select '$BODY'\"",
        "psql -h host -d ci <<< \"select '$BODY'\"",
        "mysql -h host -e \"$BODY\"",
        "sqlite3 a.db \"insert into t values ('$BODY')\"",
        "echo \"$BODY\" | sqlite3 a.db",
        "clickhouse-client --query \"$BODY\"",
        "script -qec \"$BODY\" /dev/null",
    ]);
    assert_left_alone(&[
        "lua -e 'print(os.getenv(\"BODY\"))'",
        "perl -e 'print $ARGV[0]' \"$BODY\"",
        "ruby -e 'db.execute(\"insert into t values (?)\", ENV[\"BODY\"])'",
        "psql -v text=\"$BODY\" -f insert.sql",
        "psql -c 'select 1'; echo \"$BODY\"",
        "psql -c \"select $ID\"; echo \"$BODY\"",
        "sqlite3 \"$BODY.db\" 'select 1'",
    ]);
}
