// Package benchcheck compares the results of benchmarks with a baseline in the repository. Each result is a ratio of
// processor times: that of the least possible work for a request, divided by that of Quorate. A higher ratio is better.
// The package owns only this comparison and the format of the baseline.
package benchcheck

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Command declares the flags of the subcommand bench-check, and returns a function that runs it. The function reads the
// output of go test -bench from standard input, and compares the ratio of each benchmark with a baseline. The ratio is
// the value whose unit is the one in the flag -unit; a higher ratio is better. If a benchmark ran several times, its
// highest ratio counts, because other load of the machine only makes ratios lower. The function fails in these cases:
//
//   - A ratio is lower than the baseline by more than the percentage in the flag -lower.
//   - A benchmark of the baseline did not run.
//   - A benchmark ran that is not in the baseline.
//
// With the flag -update, the function writes the ratios as the new baseline and compares nothing.
//
// Ratios also depend on the processor, so each vendor of processors has its own baseline. If the vendor of this
// machine's processor has no baseline, the baseline of a benchmark is its lowest ratio among all vendors.
func Command(f *flag.FlagSet) func(context.Context) error {
	dir := f.String("baselines", "node/testdata/costs", "directory with a file for each vendor of processors, such as "+
		"GenuineIntel.txt, with a benchmark and its ratio on each line")
	unit := f.String("unit", "x-floor-cpu", "unit of the ratio; a higher ratio is better")
	lower := f.Float64("lower", 25, "by how many percent a ratio may be below the baseline")
	update := f.Bool("update", false, "write the measured ratios to the file instead")
	return func(context.Context) error {
		measured, err := parse(os.Stdin, *unit)
		if err != nil {
			return err
		}
		vendor, err := vendor("/proc/cpuinfo")
		if err != nil {
			return err
		}
		if *update {
			return write(filepath.Join(*dir, vendor+".txt"), measured)
		}
		baseline, err := choose(os.Stdout, *dir, vendor)
		if err != nil {
			return err
		}
		return compare(os.Stdout, baseline, measured, *lower)
	}
}

// parse reads the output of go test -bench and returns the highest value with the given unit for each benchmark. It
// removes the number of processors, such as -8, from the end of the names.
func parse(in io.Reader, unit string) (map[string]float64, error) {
	out := map[string]float64{}
	processors := regexp.MustCompile(`-\d+$`)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		at := slices.Index(fields, unit)
		if at < 1 {
			continue
		}
		ratio, err := strconv.ParseFloat(fields[at-1], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		name := processors.ReplaceAllString(fields[0], "")
		out[name] = max(out[name], ratio)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, errors.New("the input has no benchmark with the unit " + unit)
	}
	return out, nil
}

// vendor returns the vendor of the processor as the file /proc/cpuinfo names it, such as GenuineIntel. It returns
// "other" if the file names none.
func vendor(cpuinfo string) (string, error) {
	text, err := os.ReadFile(cpuinfo) //nolint:gosec // of the system, or of a test
	if err != nil {
		return "", err
	}
	if m := regexp.MustCompile(`(?m)^vendor_id\s*:\s*(\w+)$`).FindSubmatch(text); m != nil {
		return string(m[1]), nil
	}
	return "other", nil
}

// choose returns the baseline of a vendor. If the vendor has no baseline, choose prints a note and returns, for each
// benchmark, the lowest ratio of all vendors.
func choose(out io.Writer, dir, vendor string) (map[string]float64, error) {
	own := filepath.Join(dir, vendor+".txt")
	if _, err := os.Stat(own); err == nil {
		return read(own)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has no baseline: make bench-check UPDATE=1 writes one (%w)", dir, cmp.Or(err,
			os.ErrNotExist))
	}
	fmt.Fprintf(out, "%s does not exist: the lowest ratios of the other vendors count (UPDATE=1 writes it)\n", own)
	lowest := map[string]float64{}
	for _, file := range files {
		ratios, err := read(file)
		if err != nil {
			return nil, err
		}
		for name, r := range ratios {
			if have, ok := lowest[name]; !ok || r < have {
				lowest[name] = r
			}
		}
	}
	return lowest, nil
}

func write(file string, measured map[string]float64) error {
	var b strings.Builder
	b.WriteString("# Ratios of processor time, floor / Quorate; make bench-check UPDATE=1 writes them.\n")
	for _, name := range slices.Sorted(maps.Keys(measured)) {
		fmt.Fprintf(&b, "%s %.3g\n", name, measured[name])
	}
	return os.WriteFile(file, []byte(b.String()), 0o600)
}

func read(file string) (map[string]float64, error) {
	text, err := os.ReadFile(file) //nolint:gosec // the file that the user names
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var name string
		var ratio float64
		if _, err := fmt.Sscan(line, &name, &ratio); err != nil {
			return nil, fmt.Errorf("%s: %q is not a name and a ratio: %w", file, strings.TrimSpace(line), err)
		}
		out[name] = ratio
	}
	return out, nil
}

// compare prints the ratios of all benchmarks in the baseline. It returns an error that names the benchmarks that were
// not measured, and those whose ratio is more than lower percent below the baseline. It also returns an error if a
// measured benchmark is not in the baseline.
func compare(out io.Writer, baseline, measured map[string]float64, lower float64) error {
	var worse []string
	for _, name := range slices.Sorted(maps.Keys(baseline)) {
		want, got := baseline[name], measured[name]
		fmt.Fprintf(out, "%-40s %6.3f, baseline %6.3f, %+4.0f %%\n", name, got, want, 100*(got/want-1))
		if got < want*(1-lower/100) {
			worse = append(worse, name)
		}
	}
	for name := range measured {
		if _, ok := baseline[name]; !ok {
			return fmt.Errorf("%s is not in the baseline: add it with -update", name)
		}
	}
	if len(worse) > 0 {
		return fmt.Errorf("more than %.0f %% below the baseline, or not measured: %s", lower,
			strings.Join(worse, ", "))
	}
	return nil
}
