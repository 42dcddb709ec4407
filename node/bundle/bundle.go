package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
)

// Node describes the node of a bundle.
type Node interface {
	Status(ctx context.Context) (schema.NodeStatus, error)
	Apps(ctx context.Context) ([]schema.AppInstance, error)
	Checkup(ctx context.Context) (schema.Checkup, error)
	ClusterStatus(ctx context.Context) (schema.ClusterStatus, error)
}

// Logs are the last records of the log, newest first.
type Logs interface {
	Records() []logadapt.RecentRecord
}

// Options are the sources of a bundle. All are required.
type Options struct {
	Node    Node
	Config  any // encoded as JSON; must have no secret
	Metrics prometheus.Gatherer
	Logs    Logs
	Version string
	Now     func() time.Time
}

// Write writes a bundle to w as a gzip-compressed tar archive. The CPU profile in the bundle takes the given time, and
// Write takes a few seconds longer.
//
// If the data of a file cannot be collected, the bundle has a file with the suffix .error instead, which contains the
// error. Write itself fails only if w fails or ctx ends. If ctx ends, the error is fault.Timeout.
func Write(ctx context.Context, w io.Writer, profile time.Duration, o Options) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	folder := "quorate-debug-" + o.Now().UTC().Format("20060102-150405") + "/"
	for _, f := range o.files(profile) {
		if err := ctx.Err(); err != nil {
			return &fault.Error{Code: fault.Timeout, Op: "bundle.Write", Msg: "the bundle was not completed", Err: err}
		}
		var b bytes.Buffer
		name := folder + f.name
		if err := f.write(ctx, &b); err != nil {
			name += ".error"
			b.Reset()
			b.WriteString(fault.Text(err) + "\n")
		}
		header := &tar.Header{Name: name, Mode: 0o600, Size: int64(b.Len()), ModTime: o.Now()}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := out.Write(b.Bytes()); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return zip.Close()
}

// file is one file of a bundle.
type file struct {
	name  string
	write func(ctx context.Context, w io.Writer) error
}

func (o Options) files(profile time.Duration) []file {
	return []file{
		{"version.txt", o.version},
		{"status.json", asJSON(o.Node.Status)},
		{"cluster.json", asJSON(o.Node.ClusterStatus)},
		{"apps.json", asJSON(o.Node.Apps)},
		{"doctor.json", asJSON(o.Node.Checkup)},
		{"config.json", asJSON(func(context.Context) (any, error) { return o.Config, nil })},
		{"log.txt", o.log},
		{"metrics.txt", o.metrics},
		{"cpu.pprof", func(ctx context.Context, w io.Writer) error { return cpu(ctx, w, profile) }},
		{"heap.pprof", runtimeProfile("heap", 0)},
		{"goroutines.txt", runtimeProfile("goroutine", 2)},
	}
}

// asJSON returns a function that calls get and writes the result as indented JSON.
func asJSON[T any](get func(context.Context) (T, error)) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		v, err := get(ctx)
		if err != nil {
			return err
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
}

// version writes the versions of the program, of Go and of the modules.
func (o Options) version(_ context.Context, w io.Writer) error {
	fmt.Fprintf(w, "quorate %s\n%s %s/%s, %d processors, GOMAXPROCS %d\n\n", o.Version, runtime.Version(),
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0))
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		fmt.Fprintln(w, m.Path, m.Version)
	}
	return nil
}

// log writes the last records of the log, oldest first.
func (o Options) log(_ context.Context, w io.Writer) error {
	records := o.Logs.Records()
	for i := len(records) - 1; i >= 0; i-- {
		r := records[i]
		text := strings.ReplaceAll(r.Text, "\n", `\n`)
		if _, err := fmt.Fprintln(w, r.Time.UTC().Format(time.RFC3339Nano), r.Level, text); err != nil {
			return err
		}
	}
	return nil
}

// metrics writes the metrics in the text format of Prometheus.
func (o Options) metrics(_ context.Context, w io.Writer) error {
	families, err := o.Metrics.Gather()
	if err != nil && len(families) == 0 {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}

// cpu records a CPU profile for the duration d and writes it to w. If ctx ends earlier, the profile is shorter. cpu
// returns an error if another CPU profile of this process is being recorded.
func cpu(ctx context.Context, w io.Writer, d time.Duration) error {
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return nil
}

// runtimeProfile returns a function that writes the runtime profile with the given name. For the level, see the
// parameter debug of pprof.Profile.WriteTo. For example, 0 selects the binary format.
func runtimeProfile(name string, level int) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error { return pprof.Lookup(name).WriteTo(w, level) }
}
