// Package benchcheck compares the ratios that benchmarks report with a baseline in the repository. It owns only this
// comparison and the format of the baseline.
package benchcheck

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Command is the subcommand bench-check. It reads the output of go test -bench from standard input, and compares the
// ratios in it with the baseline. It fails if a ratio is too far below the baseline, or if a benchmark of the baseline
// did not run. If a benchmark ran several times, its best ratio counts, because other load of the machine only makes
// ratios worse.
func Command(f *flag.FlagSet) func(context.Context) error {
	file := f.String("baseline", "node/testdata/costs.txt", "file with a benchmark and its ratio on each line")
	unit := f.String("unit", "x-floor-cpu", "unit of the ratio; a higher ratio is better")
	lower := f.Float64("lower", 25, "by how many percent a ratio may be below the baseline")
	update := f.Bool("update", false, "write the measured ratios to the file instead")
	return func(context.Context) error {
		measured, err := parse(os.Stdin, *unit)
		if err != nil {
			return err
		}
		if *update {
			return write(*file, measured)
		}
		baseline, err := read(*file)
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

// compare prints all ratios and returns an error that names those which are too low.
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
