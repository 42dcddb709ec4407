// Command quorate is a runtime sidecar with a replicated state store of its own.
//
// It owns nothing but the wiring of package cli to the process: standard streams,
// signals, the environment, and the node.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/node"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = ""

func main() { os.Exit(run()) }

// run is the program without its end.
func run() int {
	m := cli.Main{
		Args:     os.Args[1:],
		Env:      os.Environ(),
		Stdin:    os.Stdin,
		Stdout:   os.Stdout,
		Stderr:   os.Stderr,
		Version:  buildVersion(),
		Hostname: os.Hostname,
		Open:     open,
		Check:    check,
		Signals:  signals,
	}
	return m.Run(context.Background())
}

func open(ctx context.Context, c node.Config, log *slog.Logger) (cli.Node, error) {
	d := node.Deps{Logger: log, Env: os.LookupEnv, Environ: os.Environ, Exit: os.Exit, Fatal: func(err error) {
		log.Error("this node cannot go on and ends now; nothing acknowledged is lost", "error", err)
		os.Exit(1)
	}}
	if c.WithDefaults().Data.Shared {
		return orNone(node.OpenShared(ctx, c, d))
	}
	return orNone(node.Open(ctx, c, d))
}

// orNone keeps a nil pointer from becoming an interface that is not nil.
func orNone[N cli.Node](n N, err error) (cli.Node, error) {
	if err != nil {
		return nil, err
	}
	return n, nil
}

func check(ctx context.Context, c node.Config) ([]string, error) {
	return node.Check(ctx, c, os.LookupEnv)
}

// signals delivers the signals that ask a process to end. Room for two: the second must
// not be lost while the first is dealt with.
func signals() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	return c, func() { signal.Stop(c) }
}

// buildVersion is what the linker was told, or what the Go tool knows.
func buildVersion() cli.Version {
	v := cli.Version{Version: version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}
	return v
}
