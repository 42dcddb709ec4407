package configurationtest

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

func runWrites(t *testing.T, open func(t *testing.T) (configuration.Store, Subject)) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, configuration.Store, configuration.Writer){
		"Conditions": testConditions, "AllOrNone": testAllOrNone, "RefusedWrites": testRefused, "Initial": testInitial,
	} {
		t.Run(name, func(t *testing.T) {
			store, _ := open(t)
			test(t, store, store.(configuration.Writer))
		})
	}
}

func change(key, value, version string) configuration.Change {
	return configuration.Change{Item: configuration.Item{Key: key, Value: value, Version: version}}
}

func removal(key, version string) configuration.Change {
	c := change(key, "", version)
	c.Delete = true
	return c
}

func write(t *testing.T, w configuration.Writer, changes ...configuration.Change) ([]string, error) {
	t.Helper()
	written, err := w.Write(t.Context(), configuration.WriteRequest{Changes: changes})
	return written.Versions, err
}

func testConditions(t *testing.T, s configuration.Store, w configuration.Writer) {
	first, err := write(t, w, change("a", "1", configuration.VersionAbsent))
	if err != nil || len(first) != 1 || first[0] == "" {
		t.Fatal(first, err)
	}
	second, err := write(t, w, change("a", "2", first[0]))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]configuration.Change{
		"created twice": change("a", "3", configuration.VersionAbsent), "old version": change("a", "3", first[0]),
		"no version of the store": change("a", "3", "soon"), "absent key": change("b", "3", first[0]),
		"delete of an old version": removal("a", first[0]),
	} {
		if _, err := write(t, w, c); !fault.Is(err, fault.Conflict) || fault.KeyOf(err) != c.Key {
			t.Errorf("%s: %v", name, err)
		}
	}
	expect(t, values(t, s), map[string]string{"a": "2"})
	if _, err := write(t, w, removal("a", second[0])); err != nil {
		t.Error(err)
	}
	if _, err := write(t, w, removal("a", "")); err != nil {
		t.Errorf("deleting an absent key: %v", err)
	}
	expect(t, values(t, s), map[string]string{})
}

func testAllOrNone(t *testing.T, s configuration.Store, w configuration.Writer) {
	if _, err := write(t, w, change("a", "1", ""), change("b", "1", "")); err != nil {
		t.Fatal(err)
	}
	seen := Listen(t, s)
	if _, err := write(t, w, change("a", "2", ""), removal("b", ""), change("c", "2", "7")); err == nil {
		t.Fatal("a write with a wrong version succeeded")
	}
	expect(t, values(t, s), map[string]string{"a": "1", "b": "1"})
	if _, err := write(t, w, change("a", "3", ""), removal("b", ""), change("c", "3", "0")); err != nil {
		t.Fatal(err)
	}
	seen.Value(t, "c", "3")
	seen.Until(t, "b", func() bool { return seen.Deleted["b"] })
	seen.Value(t, "a", "3")
	if len(seen.All) != 3 {
		t.Errorf("delivered %v", seen.All)
	}
}

func testRefused(t *testing.T, s configuration.Store, w configuration.Writer) {
	many := map[string]string{}
	for i := range configuration.MaxItemMetadata + 1 {
		many[strings.Repeat("x", i+1)] = ""
	}
	for name, c := range map[string]struct {
		changes []configuration.Change
		code    fault.Code
	}{
		"no key":        {[]configuration.Change{change("", "1", "")}, fault.Invalid},
		"control":       {[]configuration.Change{change("a\nb", "1", "")}, fault.Invalid},
		"dots":          {[]configuration.Change{change("..", "1", "")}, fault.Invalid},
		"not UTF-8":     {[]configuration.Change{change("a", "\xff", "")}, fault.Invalid},
		"twice":         {[]configuration.Change{change("a", "1", ""), change("a", "2", "")}, fault.Invalid},
		"delete absent": {[]configuration.Change{removal("a", configuration.VersionAbsent)}, fault.Invalid},
		"long key":      {[]configuration.Change{change(strings.Repeat("k", 1025), "1", "")}, fault.TooLarge},
		"large value":   {[]configuration.Change{change("a", strings.Repeat("v", 256<<10+1), "")}, fault.TooLarge},
		"large metadata": {[]configuration.Change{{Item: configuration.Item{Key: "a", Metadata: many}}},
			fault.TooLarge},
	} {
		if _, err := write(t, w, c.changes...); !fault.Is(err, c.code) {
			t.Errorf("%s: %v", name, err)
		}
	}
	expect(t, values(t, s), map[string]string{})
	if _, err := write(t, w, change("a", strings.Repeat("v", 256<<10), "")); err != nil {
		t.Errorf("the largest value: %v", err)
	}
}

func testInitial(t *testing.T, s configuration.Store, w configuration.Writer) {
	if _, err := write(t, w, change("a", "1", ""), change("b", "1", "")); err != nil {
		t.Fatal(err)
	}
	sub, err := s.Subscribe(t.Context(), configuration.SubscribeRequest{Keys: []string{"a"}, Initial: true})
	if err != nil {
		t.Fatal(err)
	}
	seen := &Seen{sub: sub, Values: map[string]string{}, Deleted: map[string]bool{}}
	t.Cleanup(sub.Close)
	seen.Value(t, "a", "1")
	if _, err := write(t, w, change("a", "2", "")); err != nil {
		t.Fatal(err)
	}
	seen.Value(t, "a", "2")
	if len(seen.All) != 2 {
		t.Errorf("delivered %v", seen.All)
	}
}
