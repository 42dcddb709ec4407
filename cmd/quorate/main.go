// Command quorate is a Dapr-compatible sidecar with a built-in, Raft-replicated state store.
//
// It owns only the start of the program: it passes the standard streams, signals, the environment and the function that
// opens a node to package cli.
package main

import (
	"context"
	_ "embed"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/node"
)

// number is the version number in the file VERSION, such as 0.9.0. It is the version of this source code, and no other
// file contains it.
//
//go:embed VERSION
var number string

// version is set by the linker: -X main.version=1.2.3.
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

// homeDir returns the home directory of the current user according to the user database of the system. It returns "" if
// the directory is missing, is the root directory, or is not owned by the user.
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

// orNone returns n as an interface, or a nil interface if err is not nil. Without orNone, a nil pointer would become an
// interface that is not equal to nil.
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

// buildVersion returns the version and the commit of the program.
func buildVersion() command.Version {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(strings.TrimSpace(number), version, info)
}

// versionOf returns the version and the commit of the program. If the linker has set a version, versionOf returns it.
// Otherwise the version depends on the source code:
//
//   - At a tag and without local changes, it is the tag, for example 0.9.0.
//   - Otherwise it consists of number and the commit, for example 0.9.0-dev+1385e1d0a2b4.
//   - If the commit is not known, it is number and "-dev".
//
// With local changes, the version also ends with ".dirty".
func versionOf(number, linked string, info *debug.BuildInfo) command.Version {
	v := command.Version{Version: linked}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	if v.Version != "" {
		return v
	}
	module, dirty := strings.CutSuffix(info.Main.Version, "+dirty")
	commit := v.Commit
	// a pseudo-version ends with the time and 12 digits of the commit
	if pseudo := regexp.MustCompile(`[.-][0-9]{14}-([0-9a-f]{12})$`).FindStringSubmatch(module); pseudo != nil {
		module, commit = "", pseudo[1]
	}
	tag, tagged := strings.CutPrefix(module, "v")
	switch {
	case tagged && !dirty:
		v.Version = tag
	case commit != "":
		v.Version = number + "-dev+" + commit[:min(12, len(commit))]
	default:
		v.Version = number + "-dev"
	}
	if dirty {
		v.Version += ".dirty"
	}
	return v
}
