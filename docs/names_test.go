package docs_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// set returns the matches of a pattern in a text: the first group of each, or the whole match.
func set(text string, pattern *regexp.Regexp) map[string]bool {
	out := map[string]bool{}
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		out[m[len(m)-1]] = true
	}
	return out
}

// product has the names that exist in the product. They come from the code, from the Makefile, and from pages that
// other tests compare with the code.
type product struct {
	flags, commands, variables, metrics, codes, reasons, keys, targets, tests map[string]bool
	endpoints                                                                 map[string][]string // path -> verbs
	// the paths, with names in them
	served  []*regexp.Regexp
	sources string
}

func readProduct(t *testing.T) product {
	t.Helper()
	generated := func(name string) string {
		_, text, _ := strings.Cut(read(t, name), "<!-- generated: ")
		text, _, ok := strings.Cut(text, "<!-- end -->")
		if !ok {
			t.Fatalf("%s has no generated part", name)
		}
		return text
	}
	settings, commands := generated("docs/configuration.md"), generated("docs/cli.md")
	p := product{
		flags:     set(settings+commands, regexp.MustCompile(`--[a-z][a-z0-9-]+`)),
		commands:  set(commands, regexp.MustCompile(`(?m)^## quorate ([a-z-]+)`)),
		variables: set(settings, regexp.MustCompile("`([A-Z]+_[A-Z_]+)`")),
		metrics:   set(read(t, "docs/metrics.md"), regexp.MustCompile("(?m)^\\| `(quorate_[a-z0-9_]+)`")),
		keys:      set(settings, regexp.MustCompile("(?m)^\\|[^|]*\\|[^|]*\\| `([a-zA-Z]+)` \\|")),
		targets:   set(read(t, "Makefile"), regexp.MustCompile(`(?m)^([a-z-]+):`)),
		endpoints: endpoints(t),
	}
	p.commands["completion"] = true // cobra's own
	p.served = patterns(p.endpoints)
	p.codes, p.reasons = codes(t)
	p.sources = sources(t)
	p.tests = set(p.sources, regexp.MustCompile(`(?m)^func (Test\w+)\(`))
	if len(p.flags) < 40 || len(p.metrics) < 80 || len(p.codes) < 20 || len(p.reasons) < 15 || len(p.keys) < 30 ||
		len(p.tests) < 300 {
		t.Fatalf("%d flags, %d metrics, %d codes, %d reasons, %d keys, %d tests", len(p.flags), len(p.metrics),
			len(p.codes), len(p.reasons), len(p.keys), len(p.tests))
	}
	return p
}

// endpoints returns the endpoints of the OpenAPI file, which another test compares with the routes.
func endpoints(t *testing.T) map[string][]string {
	t.Helper()
	var d struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(read(t, "api/http/openapi.json")), &d); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{"/metrics": {"GET"}} // on a port of its own
	for path, operations := range d.Paths {
		for verb := range operations {
			if verb = strings.ToUpper(verb); verb != "HEAD" {
				out[path] = append(out[path], verb)
			}
		}
	}
	return out
}

// codes returns the public error codes and the reasons that the API defines as constants.
func codes(t *testing.T) (public, reasons map[string]bool) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "api", "codes.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	public, reasons = map[string]bool{}, map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		literal, ok := v.Values[0].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		word, err := strconv.Unquote(literal.Value)
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.HasPrefix(v.Names[0].Name, "Code"):
			public[word] = true
		case strings.HasPrefix(strings.ToLower(v.Names[0].Name), "reason"):
			reasons[word] = true
		}
		return true
	})
	return public, reasons
}

// sources is the text of all programs of the tree.
func sources(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, name := range files(t) {
		program := slices.Contains([]string{".go", ".py", ".yaml", ".yml"}, path.Ext(name)) ||
			slices.Contains([]string{"Makefile", "run", "verify", "steps"}, path.Base(name))
		if !program || name == "docs/names_test.go" {
			continue
		}
		b.WriteString(read(t, name))
		b.WriteByte('\n')
	}
	return b.String()
}

// What names look like.
var (
	flagName    = regexp.MustCompile(`(?:^|[\s\[(])(--[a-z][a-z0-9-]+)`)
	commandName = regexp.MustCompile(`(?:^|[;&|] ?)(?:bin/|/)?quorate ([a-z][a-z-]*)`)
	targetName  = regexp.MustCompile(`(?:^|[;&|] ?)make ([a-z-]+)`)
	testName    = regexp.MustCompile(`\b(Test[A-Z]\w+)`)
	fileName    = regexp.MustCompile(`^((?:api|cmd|component|deploy|discovery|docs|internal|` +
		`membership|node|raftfsm)/[\w./-]+)$`)
	variableName = regexp.MustCompile(`\b(?:QUORATE|DAPR|APP|OTEL)_[A-Z][A-Z_]*[A-Z]\b`)
	metricName   = regexp.MustCompile(`\bquorate_[a-z0-9_]+`)
	codeName     = regexp.MustCompile(`\bERR_[A-Z_]+\b`)
	pathName     = regexp.MustCompile("/(?:v1\\.0/|livez|readyz|openapi\\.json)" +
		"(?:\\{[^}]*\\}|[^\\s`'\"()<>|,;\\[?…])*")
	assigned  = regexp.MustCompile(`^(sudo -u \w+ |[A-Z_]+=\S* )+`)
	histogram = regexp.MustCompile(`_(bucket|sum|count)$`)
	inBraces  = regexp.MustCompile(`\{[^}]*\}`)
)

// foreign are commands of others: their flags are not ours.
var foreign = regexp.MustCompile(`^(docker|kubectl|systemctl|systemd-analyze|useradd|install|openssl|` +
	`promtool|go|curl|git|grpcurl|redis-cli|journalctl|sha256sum)\b`)

// wrong returns the names in a code span or command that do not exist in the product.
func (p product) wrong(text string) (out []string) {
	say := func(kind string, names map[string]bool, known map[string]bool) {
		for name := range names {
			if !known[name] {
				out = append(out, kind+" "+name+" does not exist")
			}
		}
	}
	text, _, _ = strings.Cut(text, " #")
	words := assigned.ReplaceAllString(strings.TrimSpace(text), "")
	if !foreign.MatchString(words) {
		say("the flag", set(words, flagName), p.flags)
	}
	say("the command quorate", set(words, commandName), p.commands)
	say("the target", set(words, targetName), p.targets)
	say("the test", set(text, testName), p.tests)
	for name := range set(text, fileName) {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(name))); err != nil {
			out = append(out, "the file "+name+" does not exist")
		}
	}
	return out
}

// wrongAnywhere returns the names in any text that do not exist in the product. It checks only kinds of names that can
// be recognized outside of code.
func (p product) wrongAnywhere(text string) (out []string) {
	for name := range set(text, variableName) {
		if !p.variables[name] && !p.reasons[name] && !strings.Contains(p.sources, name) &&
			!strings.HasPrefix(name, "OTEL_") {
			out = append(out, "the variable "+name+" does not exist")
		}
	}
	for name := range set(text, metricName) {
		base := histogram.ReplaceAllString(name, "")
		if !p.metrics[name] && !p.metrics[base] && !strings.HasSuffix(name, "_") {
			out = append(out, "the metric "+name+" does not exist")
		}
	}
	for name := range set(text, codeName) {
		if !p.codes[name] && !strings.HasSuffix(name, "_") {
			out = append(out, "the error code "+name+" does not exist")
		}
	}
	for name := range set(text, pathName) {
		if !p.serves(name) {
			out = append(out, "the endpoint "+name+" does not exist")
		}
	}
	return out
}

// serves reports whether a path, with placeholders in braces or real names, is the path of an endpoint.
func (p product) serves(path string) bool {
	path = strings.TrimRight(strings.TrimRight(inBraces.ReplaceAllString(path, "x"), "."), "/")
	for _, served := range p.served {
		if served.MatchString(path) {
			return true
		}
	}
	return false
}

// patterns returns patterns for the paths of endpoints with real names in them.
func patterns(endpoints map[string][]string) (out []*regexp.Regexp) {
	name := regexp.MustCompile(`\\\{\w+\\\}`)
	for known := range endpoints {
		pattern := regexp.QuoteMeta(known)
		for _, last := range []string{`\{key\}`, `\{target\}`} {
			if cut, ok := strings.CutSuffix(pattern, last); ok {
				pattern = cut + ".+"
			}
		}
		out = append(out, regexp.MustCompile("^"+name.ReplaceAllString(pattern, "[^/]+")+"$"))
	}
	return out
}

// written returns the pages that people write, without generated pages and pages about other versions.
func written(t *testing.T) (out []page) {
	t.Helper()
	for _, p := range pages(t) {
		if p.path == "CHANGELOG.md" || strings.HasPrefix(p.path, "docs/adr/") {
			continue
		}
		p.text = regexp.MustCompile(`(?s)<!-- generated: .*?<!-- end -->`).ReplaceAllStringFunc(p.text,
			func(s string) string {
				return strings.Repeat("\n", strings.Count(s, "\n"))
			})
		out = append(out, p)
	}
	return out
}

func TestNames_InPagesExist(t *testing.T) {
	known := readProduct(t)
	for _, p := range written(t) {
		number := 0
		for line := range strings.Lines(p.text) {
			number++
			for _, problem := range known.wrongAnywhere(line) {
				t.Errorf("%s:%d: %s", p.path, number, problem)
			}
		}
		number = 0
		for line := range strings.Lines(p.prose()) {
			number++
			for _, span := range code.FindAllString(line, -1) {
				for _, problem := range known.wrong(strings.Trim(span, "`")) {
					t.Errorf("%s:%d: %s", p.path, number, problem)
				}
			}
		}
		for _, b := range p.parts {
			switch b.language {
			case "sh":
				for line := range strings.Lines(b.text) {
					for _, problem := range known.wrong(line) {
						t.Errorf("%s:%d: %s", p.path, b.line, problem)
					}
				}
			case "yaml":
				for _, problem := range known.wrongKeys(b.text) {
					t.Errorf("%s:%d: %s", p.path, b.line, problem)
				}
			}
		}
	}
}

// wrongKeys returns the keys of a settings file that do not exist. It ignores documents with an apiVersion, which the
// tests of component/builtin check.
func (p product) wrongKeys(text string) (out []string) {
	var file map[string]any
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return []string{err.Error()}
	}
	if file["apiVersion"] != nil || file["services"] != nil {
		return nil
	}
	for key := range file {
		if !p.keys[key] && !slices.Contains([]string{"apps", "backup", "version", "common"}, key) {
			out = append(out, "the key "+key+" does not exist")
		}
	}
	return out
}

func TestNames_FindsUnknown(t *testing.T) {
	p := readProduct(t)
	for text, bad := range map[string]bool{
		"quorate run --http-port 3500":              false,
		"bin/quorate state get statestore a --json": false,
		"docker compose up --no-deps n1":            false,
		"`ERR_STATE_SAVE` and QUORATE_HTTP_PORT":    false,
		"/v1.0/state/{store}/a/b?x":                 false,
		"/v1.0/invoke/{app id}/method/{path}":       false,
		"quorate_raft_log_append_seconds_bucket":    false,
		"make cluster":                              false,
		"quorate run --http-ports 3500":             true,
		"quorate start":                             true,
		"make coffee":                               true,
		"ERR_STATE_LOST":                            true,
		"QUORATE_LUCK":                              true,
		"/v1.0/conversations/a":                     true,
		"/v1.0/state":                               true,
		"quorate_raft_luck":                         true,
		"TestNothingOfTheKind":                      true,
		"docs/nothing.md":                           true,
	} {
		if got := append(p.wrong(text), p.wrongAnywhere(text)...); (len(got) > 0) != bad {
			t.Errorf("%s: %q", text, got)
		}
	}
	if len(p.wrongKeys("httpPort: 1\nhttpPorts: 2\n")) != 1 {
		t.Error("a key of a settings file that does not exist is not found")
	}
}

// TestAPIPage_IsComplete: docs/api.md has every endpoint with its verbs, every error code and every reason.
func TestAPIPage_IsComplete(t *testing.T) {
	p, text := readProduct(t), read(t, "docs/api.md")
	for code := range p.codes {
		if !regexp.MustCompile(`(?m)^\|[^|]*\b` + code + `\b`).MatchString(text) {
			t.Errorf("the table of errors lacks %s", code)
		}
	}
	for reason := range p.reasons {
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + reason + "`").MatchString(text) {
			t.Errorf("the table of reasons lacks %s", reason)
		}
	}
	listed := map[string]bool{}
	_, table, _ := strings.Cut(text, "\n## Endpoints\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range regexp.MustCompile(`(?m)^\| (.*?) \| `).FindAllStringSubmatch(strings.ReplaceAll(table, `\|`,
		","), -1) {
		_, path, _ := strings.Cut(m[1], "/")
		path, _, _ = strings.Cut(inBraces.ReplaceAllString("/"+strings.Trim(path, "`"), "{}"), "[")
		for verb := range set(m[1], regexp.MustCompile(`\b[A-Z]{3,}\b`)) {
			row := verb + " " + path
			if listed[row] {
				t.Errorf("%s is listed twice", row)
			}
			listed[row] = true
		}
	}
	for path, verbs := range p.endpoints {
		for _, verb := range verbs {
			row := verb + " " + inBraces.ReplaceAllString(path, "{}")
			if path != "/metrics" && path != "/v1.0/invoke/{target}" && !listed[row] {
				t.Errorf("the table of endpoints lacks %s", row)
			}
			delete(listed, row)
		}
	}
	for row := range listed {
		t.Errorf("the table of endpoints has %s, which is none", row)
	}
}
