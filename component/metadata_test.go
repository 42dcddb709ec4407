package component_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

func declared() []component.Field {
	return []component.Field{
		{Name: "url", Required: true, Aliases: []string{"address", "Host"}},
		{Name: "retries", Kind: component.Int, Default: "3"},
		{Name: "timeout", Kind: component.Duration, Default: "5s"},
		{Name: "cache", Kind: component.Size},
		{Name: "enableTLS", Kind: component.Bool, Security: true},
		{Name: "mode", Default: "fast", Check: func(text string) error {
			if text != "fast" && text != "safe" {
				return errors.New("is neither fast nor safe")
			}
			return nil
		}},
		{Name: "accessKey", Secret: true},
		{Name: "old", Refused: "it was removed"},
	}
}

// given makes metadata from plain values, one "name=value" per line.
func given(lines ...string) component.Metadata {
	var m component.Metadata
	for i, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		m = append(m, component.Property{Name: name, Value: value, Pos: at(10 + i)})
	}
	return m
}

func TestCheck_ValuesByDeclaredName(t *testing.T) {
	m := given("HOST=h", "RETRIES=-7", "Timeout=1m30s", "cache=4Mi", "enabletls=On", "mode=safe")
	v, warnings, err := m.Check(at(1), "c", declared())
	if err != nil || len(warnings) != 0 {
		t.Fatalf("Check: %v, %v", warnings, err)
	}
	if v.Text("url") != "h" || v.Int("retries") != -7 || v.Duration("timeout") != 90*time.Second ||
		v.Int("cache") != 4<<20 || !v.Bool("enableTLS") || v.Text("mode") != "safe" {
		t.Errorf("values are %+v", v)
	}
	if !v.Given("url") || v.Given("accessKey") {
		t.Error("Given must tell what stands in the file")
	}
}

// The warning for an ignored setting of Dapr suggests the field that replaces the setting.
func TestCheck_IgnoredSettingNamesItsSuccessor(t *testing.T) {
	fields := []component.Field{{Name: "defaultTTLInSeconds", Replaces: []string{"ttlInSeconds"}}}
	_, warnings, err := given("TTLInSeconds=5").Check(at(1), "c", fields)
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0].String(), "use defaultTTLInSeconds") {
		t.Errorf("%v, %v", warnings, err)
	}
}

func TestCheck_Defaults(t *testing.T) {
	for _, m := range []component.Metadata{given("url=h"),
		given("url=h", "retries=", "timeout=", "cache=", "enableTLS=", "mode=")} {
		v, _, err := m.Check(at(1), "c", declared())
		if err != nil {
			t.Fatal(err)
		}
		if v.Int("retries") != 3 || v.Duration("timeout") != 5*time.Second || v.Int("cache") != 0 ||
			v.Bool("enableTLS") || v.Text("mode") != "fast" || v.Given("retries") {
			t.Errorf("values are %+v", v)
		}
	}
}

func TestCheck_ListsAllProblems(t *testing.T) {
	m := given("retries=1.5", "timeout=-1s", "cache=big", "enableTLS=maybe", "mode=slow", "old=1", "enableTSL=true",
		"retrys=1", "clientSecret=x", "unheard=of", "accessKey=plain")
	_, warnings, err := m.Check(at(1), "c", declared())
	want := []string{
		"9 problems:",
		`f.yaml:10: component c: metadata retries is "1.5", which is not a whole number`,
		`f.yaml:11: component c: metadata timeout is "-1s", which is not a duration such as 500ms, 5s or 1m30s`,
		`f.yaml:12: component c: metadata cache is "big", which is not a size such as 512Ki, 4Mi or 1000000`,
		`f.yaml:13: component c: metadata enableTLS is "maybe", which is neither true nor false`,
		`f.yaml:14: component c: metadata mode is "slow", which is neither fast nor safe`,
		`f.yaml:15: component c: metadata old cannot be used: it was removed`,
		`f.yaml:16: component c: metadata enableTSL is unknown to this type, and ignoring it could be unsafe ` +
			`(did you mean enableTLS?)`,
		`f.yaml:18: component c: metadata clientSecret is unknown to this type, and ignoring it could be unsafe ` +
			`(known: accessKey, cache, enableTLS, mode, retries, timeout, url)`,
		`f.yaml:1: component c: metadata url is missing (add it to spec.metadata)`,
	}
	if diff := cmp.Diff(want, strings.Split(fault.Text(err), "\n\t")); diff != "" {
		t.Errorf("error (-want +got)\n%s", diff)
	}
	if !fault.Is(err, fault.Invalid) || fault.KeyOf(err) != "c" {
		t.Errorf("error has code %q and key %q", fault.CodeOf(err), fault.KeyOf(err))
	}
	var odd []string
	for _, w := range warnings {
		odd = append(odd, w.String())
	}
	wantOdd := []string{
		`f.yaml:17: component c: metadata retrys is unknown to this type and ignored (did you mean retries?)`,
		`f.yaml:19: component c: metadata unheard is unknown to this type and ignored (known: accessKey, cache, ` +
			`enableTLS, mode, retries, timeout, url)`,
		`f.yaml:20: component c: metadata accessKey is a secret written into the file (use secretKeyRef)`,
	}
	if diff := cmp.Diff(wantOdd, odd); diff != "" {
		t.Errorf("warnings (-want +got)\n%s", diff)
	}
}

func TestProblems_LongListIsTruncated(t *testing.T) {
	var m component.Metadata
	for range 30 {
		m = append(m, component.Property{Name: "someToken", Pos: at(1)})
	}
	_, _, err := m.Check(at(1), "c", nil)
	if text := fault.Text(err); strings.Count(text, "\n") != 21 || !strings.HasSuffix(text, "\n\tand 10 more") {
		t.Errorf("error is %s", text)
	}
}

func TestCheck_NeverShowsReferencedValue(t *testing.T) {
	const hidden = "hunter2"
	m := component.Metadata{{Name: "url", Value: "h", Pos: at(9)}}
	for i, name := range []string{"retries", "timeout", "cache", "enableTLS", "mode"} {
		m = append(m, component.Property{Name: name, Value: hidden, Sensitive: true, Pos: at(10 + i)})
	}
	_, _, err := m.Check(at(1), "c", declared())
	if err == nil || strings.Contains(err.Error(), hidden) || strings.Count(err.Error(), "its secret value") != 5 {
		t.Errorf("error is %v", err)
	}
	_, _, err = given("url=h", "accessKey="+hidden).Check(at(1), "c", []component.Field{
		{Name: "url"}, {Name: "accessKey", Secret: true,
			Check: func(text string) error { return errors.New("is not " + text) }},
	})
	if err == nil || strings.Contains(err.Error(), hidden) {
		t.Errorf("error is %v", err)
	}
	if got := m.Sensitive(); len(got) != 5 || got[0] != hidden {
		t.Errorf("Sensitive() = %q", got)
	}
}

func TestCheck_SkipsUnresolvedValue(t *testing.T) {
	m := component.Metadata{
		{Name: "url", Unresolved: true, Sensitive: true}, {Name: "retries", Unresolved: true,
			Sensitive: true}, {Name: "mode", Value: "{uuid}", Unresolved: true},
	}
	v, _, err := m.Check(at(1), "c", declared())
	if err != nil || !v.Given("url") || !v.Given("retries") {
		t.Errorf("Check: %+v, %v", v, err)
	}
}

func TestCheck_InvalidDefault(t *testing.T) {
	_, _, err := given().Check(at(1), "c", []component.Field{{Name: "n", Kind: component.Int, Default: "x"}})
	if err == nil || !strings.Contains(err.Error(), "the default of metadata n") {
		t.Errorf("Check: %v", err)
	}
}

func TestValues_UndeclaredNamePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it did not")
		}
	}()
	component.Values{}.Text("nothing")
}

func TestLookup_IgnoresCase(t *testing.T) {
	m := given("keyPrefix=name")
	if p, ok := m.Lookup("KEYprefix"); !ok || p.Value != "name" {
		t.Errorf("Lookup = %+v, %v", p, ok)
	}
	if _, ok := m.Lookup("keyPrefi"); ok {
		t.Error("Lookup found a name that is not there")
	}
}

func TestParseSize_Units(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "4194304": 4 << 20, "10B": 10, "4Mi": 4 << 20, "4MiB": 4 << 20, "4mi": 4 << 20,
		"512Ki": 512 << 10, "1Gi": 1 << 30,
		"3k": 3000, "3K": 3000, "3kB": 3000, "2M": 2e6, "2G": 2e9, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := component.ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Mi", "B", "-1", "+1", "1.5Mi", "4 Mi", "4MB i", "1Ti", "0x10", "1_000", "4iM",
		"4BB", "9223372036854775808", "9007199254740992Ki", "8589934592Gi"} {
		if got, err := component.ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", text, got)
		}
	}
}

func TestRegistry_FindsAnyCaseAndSuggests(t *testing.T) {
	r, err := component.NewRegistry(map[string]string{"state.raft": "raft", "State.In-Memory": "memory",
		"state.redis": "one", "state.redis/v2": "two"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{
		{"state.raft", "v1", "raft"}, {"STATE.RAFT", "", "raft"}, {"state.in-memory", "V0", "memory"}, {"state.redis",
			"v0", "one"}, {"state.Redis", "V2", "two"},
	} {
		if got, err := r.Find(c[0], c[1]); err != nil || got != c[2] {
			t.Errorf("Find(%q, %q) = %q, %v; want %q", c[0], c[1], got, err, c[2])
		}
	}
	for _, c := range [][3]string{
		{"state.rafft", "v1", "the component type state.rafft is unknown (did you mean state.raft?)"},
		{"state.nothing", "v1", "the component type state.nothing is unknown (known: state.in-memory, state.raft, " +
			"state.redis, state.redis/v2)"},
		{"state.raft", "v2", "the component type state.raft has no version v2 (known: state.in-memory, " +
			"state.raft, state.redis, state.redis/v2)"},
	} {
		if _, err := r.Find(c[0], c[1]); !fault.Is(err, fault.NotFound) || fault.Text(err) != c[2] {
			t.Errorf("Find(%q, %q): %v, want %s", c[0], c[1], fault.Text(err), c[2])
		}
	}
	if _, err := (component.Registry[int]{}).Find("a.b",
		""); fault.Text(err) != "the component type a.b is unknown (known: none)" {
		t.Errorf("the empty registry says %v", err)
	}
	if !slices.Equal(r.Types(), []string{"state.in-memory", "state.raft", "state.redis", "state.redis/v2"}) {
		t.Errorf("Types() = %q", r.Types())
	}
}

func TestRegistry_RefusesDuplicates(t *testing.T) {
	for _, table := range []map[string]int{{"a.b": 1, "A.B": 2}, {"a.b": 1, "a.b/v1": 2}, {"": 1}} {
		if _, err := component.NewRegistry(table); !fault.Is(err, fault.Invalid) {
			t.Errorf("NewRegistry(%v): %v", table, err)
		}
	}
}

func TestRegistry_AllOtherTypes(t *testing.T) {
	r, err := component.NewRegistry(map[string]string{"state.raft": "raft", "state.redis/v2": "two",
		"state.*": "other"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{
		{"state.raft", "v1", "raft"}, {"state.redis", "v2", "two"}, {"state.x", "v1", "other"},
		{"STATE.a.b", "", "other"}, {"state.*", "v1", "other"},
	} {
		if got, err := r.Find(c[0], c[1]); err != nil || got != c[2] {
			t.Errorf("Find(%q, %q) = %q, %v; want %q", c[0], c[1], got, err, c[2])
		}
	}
	for _, c := range [][2]string{{"state.raft", "v2"}, {"state.redis", "v1"}, {"state.x", "v2"}, {"lock.x", "v1"},
		{"state", "v1"}, {"state.", "v1"}} {
		if got, err := r.Find(c[0], c[1]); !fault.Is(err, fault.NotFound) || strings.Contains(err.Error(), "*") {
			t.Errorf("Find(%q, %q) = %q, %v", c[0], c[1], got, err)
		}
	}
	if got := r.Types(); !slices.Equal(got, []string{"state.raft", "state.redis/v2"}) {
		t.Errorf("Types() = %q", got)
	}
}

// TestCheck_Rest checks metadata of a type that takes every name.
func TestCheck_Rest(t *testing.T) {
	fields := append(declared()[1:], component.Field{Rest: true})
	m := append(given("Retries=7", "Some.Name=x", "apiToken=", "tlsVerify=true"),
		component.Property{Name: "password", Value: "hunter2", Sensitive: true},
		component.Property{Name: "later", Unresolved: true})
	v, warnings, err := m.Check(at(1), "c", fields)
	if err != nil || len(warnings) != 0 || v.Int("retries") != 7 {
		t.Fatalf("Check: %+v, %v, %v", v, warnings, err)
	}
	want := map[string]string{"Retries": "7", "Some.Name": "x", "apiToken": "", "tlsVerify": "true",
		"password": "hunter2"}
	if diff := cmp.Diff(want, v.Properties()); diff != "" {
		t.Errorf("properties (-want +got)\n%s", diff)
	}
	if !slices.Equal(v.Sensitive(), []string{"hunter2"}) {
		t.Errorf("sensitive values are %q", v.Sensitive())
	}
	if _, _, err := given("enableTSL=true").Check(at(1), "c", fields); !fault.Is(err, fault.Invalid) {
		t.Errorf("a misspelt name of a field with Security: %v", err)
	}
	if v, _, err := given("url=a").Check(at(1), "c", declared()); err != nil || v.Properties() != nil {
		t.Errorf("without such a field: %v, %v", v.Properties(), err)
	}
}

func TestHide_EveryForm(t *testing.T) {
	got := component.Hide(`a "b"&c, "a \"b\"&c", a+%22b%22%26c, a%20%22b%22&c, a`, []string{`a "b"&c`, ""})
	if want := `***, "***", ***, ***, a`; got != want {
		t.Errorf("Hide = %s, want %s", got, want)
	}
}
