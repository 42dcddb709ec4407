// Command quorate is a Dapr-compatible sidecar with a built-in, Raft-replicated state store.
//
// It owns only the start of the program. It gives package cli the standard streams, signals, the environment and the
// function that opens a node.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"runtime/debug"
	"syscall"

	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/node"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = ""

func main() { os.Exit(run()) }

// run runs the program and returns its exit code.
func run() int {
	m := cli.Main{
		Shell: &command.Shell{
			Env:      os.Environ(),
			Stdin:    os.Stdin,
			Stdout:   os.Stdout,
			Stderr:   os.Stderr,
			Version:  buildVersion(),
			Hostname: os.Hostname,
			Home:     homeDir,
			Signals:  signals,
		},
		Program: os.Args[0],
		Args:    os.Args[1:],
		Open:    open,
		Check:   check,
	}
	return m.Run(context.Background())
}

func open(ctx context.Context, c node.Config, log *slog.Logger) (cli.Node, error) {
	c.MemoryLimit = limitMemory(c.MemoryLimit, log)
	d := node.Deps{Logger: log, Env: os.LookupEnv, Environ: os.Environ, Exit: os.Exit, Fatal: func(err error) {
		log.Error("this node cannot continue and exits", "error", err)
		os.Exit(1)
	}}
	if c.WithDefaults().Data.Shared {
		return orNone(node.OpenShared(ctx, c, d))
	}
	return orNone(node.Open(ctx, c, d))
}

// homeDir returns the home directory of this user in the user database of the system. It returns "" if there is none,
// or if the user does not own it.
func homeDir() string {
	u, err := user.Current()
	if err != nil || u.HomeDir == "/" {
		return ""
	}
	info, err := os.Stat(u.HomeDir)
	if err != nil || !info.IsDir() {
		return ""
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() {
		return ""
	}
	return u.HomeDir
}

// orNone returns a nil interface for a nil pointer.
func orNone[N cli.Node](n N, err error) (cli.Node, error) {
	if err != nil {
		return nil, err
	}
	return n, nil
}

func check(ctx context.Context, c node.Config) ([]string, error) {
	return node.Check(ctx, c, os.LookupEnv)
}

// signals returns a channel with the signals that stop the process, and a function that ends the delivery. The
// channel buffers two signals, so that the second is not lost while the first is being handled.
func signals() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	return c, func() { signal.Stop(c) }
}

// buildVersion returns the version and the commit of the program. The version is the one that the linker has set.
// Without it, the version is that of the build info, or "devel".
func buildVersion() command.Version {
	v := command.Version{Version: version}
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
