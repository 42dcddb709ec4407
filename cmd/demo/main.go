// Command demo shows what a Quorate node promises, on real data: it starts the quorate
// program, saves every Debian package record of this machine through the HTTP API, reads
// all of them back, kills the node without warning, starts it again on the same
// directory, and compares every byte once more.
//
// It owns the story and its summary. It must never use anything of the node but its
// binary and its HTTP API. It runs the node as a child process, which never outlives it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	d := demo{out: os.Stdout}
	flag.StringVar(&d.binary, "binary", "", "the quorate program; empty builds it")
	flag.StringVar(&d.source, "source", debianStatus, "file with Debian package records; records are generated where it does not exist")
	flag.StringVar(&d.logStore, "log-store", "boltdb", "log store of the node")
	flag.Parse()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo: "+err.Error())
		os.Exit(1)
	}
}

// demo is one run of the story.
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

// records loads the package records of this machine, or makes some up and says so.
func (d *demo) records() ([]record, error) {
	f, err := os.Open(d.source)
	if os.IsNotExist(err) {
		fmt.Fprintf(d.out, "There is no %s here: %d records are generated instead.\n", d.source, generatedRecords)
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

// tell is the story: save, compare, kill, start, compare.
func (d *demo) tell(ctx context.Context, dataDir string, records []record) error {
	n, err := d.start(ctx, dataDir, "start of an empty node")
	if err != nil {
		return err
	}
	defer func() { n.kill() }() // whichever node runs at the end
	if err := d.timed("save in batches", records, func() error { return n.save(ctx, records) }); err != nil {
		return err
	}
	before := map[string]string{}
	if err := d.timed("read back and compare", records, func() error { return n.compare(ctx, records, before) }); err != nil {
		return err
	}
	fmt.Fprintln(d.out, "Every record came back as it was saved. Killing the node (SIGKILL).")
	n.kill()
	again, err := d.start(ctx, dataDir, "start after the kill")
	if err != nil {
		return err
	}
	n = again
	after := map[string]string{}
	if err := d.timed("read back and compare", records, func() error { return n.compare(ctx, records, after) }); err != nil {
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

// timed notes how long do takes for records.
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
		fmt.Fprintf(t, "%s\t%d\t%d\t%.2f\t%.0f\t\n", s.name, s.items, s.bytes, s.took.Seconds(), float64(s.items)/s.took.Seconds())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(d.out, "\nNothing was lost and nothing was changed: every value and every ETag is the same after the kill.")
	return err
}
