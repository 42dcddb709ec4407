// Package demo shows that a Quorate node loses no acknowledged write when it is killed. It starts the quorate program,
// saves every Debian package record of this machine through the HTTP API, and reads all records back. Then it kills
// the node, starts it again on the same directory, and compares every record once more.
//
// It owns the order of these steps and their summary. It uses only the binary and the HTTP API of the node. The node
// is a child process that ends with this program.
package demo

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// Command declares the flags and returns a function that runs the demo.
func Command(f *flag.FlagSet) func(context.Context) error {
	d := demo{out: os.Stdout}
	f.StringVar(&d.binary, "binary", "", "path of the quorate program; empty = build it")
	f.StringVar(&d.source, "source", debianStatus,
		"file with Debian package records; if it does not exist, records are generated")
	f.StringVar(&d.logStore, "log-store", "boltdb", "log store of the node")
	return d.run
}

// demo is one run of the demo.
type demo struct {
	out      io.Writer
	binary   string
	source   string
	logStore string

	steps []step
}

// step is one line of the summary.
type step struct {
	name  string
	items int
	bytes int
	took  time.Duration
}

func (d *demo) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "quorate-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if removed := os.RemoveAll(dir); err == nil {
			err = removed
		}
	}()
	records, err := d.records()
	if err != nil {
		return err
	}
	if err := d.build(ctx, dir); err != nil {
		return err
	}
	if err := d.tell(ctx, filepath.Join(dir, "data"), records); err != nil {
		return err
	}
	return d.summary()
}

// records reads the Debian package records of this machine. If there are none, it generates records, and prints that
// it did so.
func (d *demo) records() ([]record, error) {
	f, err := os.Open(d.source)
	if os.IsNotExist(err) {
		fmt.Fprintf(d.out, "%s does not exist: using %d generated records.\n", d.source, generatedRecords)
		return generate(generatedRecords), nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	records, err := parse(f)
	if err == nil && len(records) == 0 {
		err = fmt.Errorf("%s holds no package records", d.source)
	}
	fmt.Fprintf(d.out, "%d package records from %s.\n", len(records), d.source)
	return records, err
}

func (d *demo) build(ctx context.Context, dir string) error {
	if d.binary != "" {
		return nil
	}
	fmt.Fprintln(d.out, "Building quorate.")
	d.binary = filepath.Join(dir, "quorate")
	build := exec.CommandContext(ctx, "go", "build", "-o", d.binary, "github.com/quorate/quorate/cmd/quorate")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	return build.Run()
}

// tell runs the steps: save, compare, kill, start, compare.
func (d *demo) tell(ctx context.Context, dataDir string, records []record) error {
	n, err := d.start(ctx, dataDir, "start of an empty node")
	if err != nil {
		return err
	}
	defer func() { n.kill() }() // the node that runs at the end
	if err := d.timed("save in batches", records, func() error { return n.save(ctx, records) }); err != nil {
		return err
	}
	before := map[string]string{}
	if err := d.timed("read back and compare", records,
		func() error { return n.compare(ctx, records, before) }); err != nil {
		return err
	}
	fmt.Fprintln(d.out, "Every record was read back unchanged. Killing the node (SIGKILL).")
	n.kill()
	again, err := d.start(ctx, dataDir, "start after the kill")
	if err != nil {
		return err
	}
	n = again
	after := map[string]string{}
	if err := d.timed("read back and compare", records,
		func() error { return n.compare(ctx, records, after) }); err != nil {
		return err
	}
	for key, etag := range before {
		if after[key] != etag {
			return fmt.Errorf("the ETag of %q was %s before the kill and is %s now", key, etag, after[key])
		}
	}
	return nil
}

func (d *demo) start(ctx context.Context, dataDir, name string) (*child, error) {
	begin := time.Now()
	n, err := start(ctx, d.binary, dataDir, d.logStore)
	if err == nil {
		d.steps = append(d.steps, step{name: name, took: time.Since(begin)})
		fmt.Fprintf(d.out, "A node serves %s.\n", n.base)
	}
	return n, err
}

// timed runs do, and adds a step with its duration and the size of records to the summary.
func (d *demo) timed(name string, records []record, do func() error) error {
	begin := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	size := 0
	for _, r := range records {
		size += len(r.value)
	}
	d.steps = append(d.steps, step{name, len(records), size, time.Since(begin)})
	return nil
}

func (d *demo) summary() error {
	t := tabwriter.NewWriter(d.out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\nstep\titems\tbytes\tseconds\titems/s\t")
	for _, s := range d.steps {
		if s.items == 0 {
			fmt.Fprintf(t, "%s\t\t\t%.2f\t\t\n", s.name, s.took.Seconds())
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%.2f\t%.0f\t\n", s.name, s.items, s.bytes, s.took.Seconds(),
			float64(s.items)/s.took.Seconds())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(d.out, "\nNothing was lost or changed: every value and every ETag is the same after the "+
		"kill.")
	return err
}
