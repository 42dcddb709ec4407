package benchcheck

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkCost/get-2    20000   17000 ns/op   0.700 x-floor   0.800 x-floor-cpu
BenchmarkCost/get-2    20000   17000 ns/op   0.700 x-floor   0.850 x-floor-cpu
BenchmarkCost/save-2   20000   17000 ns/op   0.200 x-floor   0.300 x-floor-cpu
BenchmarkOther-2       20000   17000 ns/op
PASS
`

func TestCompare_FindsWorseAndMissing(t *testing.T) {
	measured, err := parse(strings.NewReader(output), "x-floor-cpu")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		get, save float64
		more      string
		want      string // part of the error; empty = none
	}{
		"as before":       {.85, .3, "", ""},
		"a little worse":  {1, .39, "", ""},
		"much worse":      {.85, .41, "", "BenchmarkCost/save"},
		"the best counts": {1.13, .3, "", ""},
		"not measured":    {.85, .3, "BenchmarkCost/gone", "BenchmarkCost/gone"},
	} {
		t.Run(name, func(t *testing.T) {
			baseline := map[string]float64{"BenchmarkCost/get": c.get, "BenchmarkCost/save": c.save}
			if c.more != "" {
				baseline[c.more] = 1
			}
			err := compare(io.Discard, baseline, measured, 25)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if err := compare(io.Discard, map[string]float64{"BenchmarkCost/get": 1}, measured, 25); err == nil {
		t.Error("a benchmark without a baseline was accepted")
	}
}

func TestParse_RefusesInputWithoutRatios(t *testing.T) {
	if got, err := parse(strings.NewReader("PASS\n"), "x-floor-cpu"); err == nil {
		t.Errorf("%v", got)
	}
}

func TestWrite_IsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "costs.txt")
	if err := write(file, map[string]float64{"a": .8125, "b": 1}); err != nil {
		t.Fatal(err)
	}
	got, err := read(file)
	if err != nil || len(got) != 2 || got["a"] != .812 || got["b"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestChoose_BaselineOfVendor(t *testing.T) {
	dir := t.TempDir()
	if _, err := choose(io.Discard, dir, "A"); err == nil || !strings.Contains(err.Error(), "UPDATE=1") {
		t.Errorf("no baseline: %v", err)
	}
	for vendor, ratios := range map[string]map[string]float64{"A": {"get": .9, "save": .3},
		"B": {"get": .8, "save": .4}} {
		if err := write(filepath.Join(dir, vendor+".txt"), ratios); err != nil {
			t.Fatal(err)
		}
	}
	for vendor, want := range map[string][2]float64{"A": {.9, .3}, "B": {.8, .4}, "other": {.8, .3}} {
		var out strings.Builder
		got, err := choose(&out, dir, vendor)
		if err != nil || got["get"] != want[0] || got["save"] != want[1] {
			t.Errorf("%s: %v, %v", vendor, got, err)
		}
		if (out.Len() > 0) != (vendor == "other") {
			t.Errorf("%s: %q", vendor, out.String())
		}
	}
}

func TestVendor(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t: fpu\n": "GenuineIntel",
		"processor\t: 0\nBogoMIPS\t: 48.00\n":                       "other",
		"vendor_id\t: ../x\n":                                       "other",
	} {
		file := filepath.Join(t.TempDir(), "cpuinfo")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := vendor(file); got != want || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
