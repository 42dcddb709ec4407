package demo

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse_ParagraphsAreRecords(t *testing.T) {
	records, err := parse(strings.NewReader("\nPackage: libstdc++6\nArchitecture: amd64\nDescription: GNU\n" +
		" the \"C++\" library\n .\n more: text\n\n\nPackage: b\nEmpty:\nArchitecture: all\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]string{}
	for _, r := range records {
		var fields map[string]string
		if err := json.Unmarshal(r.value, &fields); err != nil {
			t.Fatal(err)
		}
		got[r.key] = fields
	}
	want := map[string]map[string]string{
		"package/libstdc++6/amd64": {"Package": "libstdc++6", "Architecture": "amd64", "Description": "GNU\n" +
			" the \"C++\" library\n .\n more: text"},
		"package/b/all": {"Package": "b", "Architecture": "all", "Empty": ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParse_RefusesOtherText(t *testing.T) {
	for _, text := range []string{"no field here\n", " continues nothing\n", ": no name\n",
		strings.Repeat("x", maxLine+1)} {
		if records, err := parse(strings.NewReader(text)); err == nil {
			t.Errorf("%d records", len(records))
		}
	}
}

func TestGenerate_IsDeterministic(t *testing.T) {
	a, b := generate(50), generate(50)
	keys := map[string]bool{}
	for i := range a {
		if a[i].key != b[i].key || string(a[i].value) != string(b[i].value) || !json.Valid(a[i].value) {
			t.Fatalf("record %d: %s and %s", i, a[i].value, b[i].value)
		}
		keys[a[i].key] = true
	}
	if len(keys) != 50 {
		t.Errorf("%d different keys", len(keys))
	}
}

func FuzzParse(f *testing.F) {
	f.Add("Package: a\n b\n\nPackage: c\n")
	f.Add(": x\n")
	f.Fuzz(func(t *testing.T, text string) {
		records, err := parse(strings.NewReader(text))
		for _, r := range records {
			if err == nil && !json.Valid(r.value) {
				t.Fatalf("%q is not JSON", r.value)
			}
		}
	})
}
