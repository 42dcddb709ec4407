package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/cmd/internal/appcmd"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/child"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/internal/userfile"
	"github.com/quorate/quorate/node"
)

// runApp is one application of a run file: the settings of its node, and its command.
type runApp struct {
	id      string
	dir     string
	flags   []string
	command []string
	env     map[string]string
}

// runFile runs the applications of a run file, each with its own node. When an application or a node ends, or a signal
// arrives, all of them are stopped.
func (m *Main) runFile(c *cobra.Command, path string, child []string) error {
	var others []string
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "run-file" {
			others = append(others, "--"+f.Name)
		}
	})
	if len(child) > 0 || len(others) > 0 {
		return command.Usagef("--run-file cannot be combined with %s (write it into the file, under common: or its "+
			"application)", strings.Join(append(others, child...), " "))
	}
	text, err := userfile.ReadOnce(path)
	if err != nil {
		return command.Usage(&fault.Error{Code: fault.Invalid, Op: "cli.run", Msg: "the run file cannot be read",
			Err: err, Key: path})
	}
	if path, err = filepath.Abs(path); err != nil { // the applications have their own working directories
		return fault.Wrap(err, "cli.run", "the run file")
	}
	apps, err := parseRunFile(path, text)
	if err != nil {
		return command.Usage(err)
	}
	program, err := os.Executable()
	if err != nil {
		return fault.Wrap(err, "cli.run", "the path of the quorate program is unknown")
	}
	if config, err := m.Resolve(settings.New(), pflag.NewFlagSet("", pflag.ContinueOnError), nil); err == nil {
		note := hostshare.Note{PID: os.Getpid(), Run: &hostshare.Run{Started: time.Now().UTC(), File: path}}
		if presence, err := appcmd.Announce(config.Data.RuntimeDir, note); err == nil {
			defer func() { _ = presence.Close() }() // only quorate stop -f needs it
		}
	}
	return m.runApps(c.Context(), program, apps)
}

// runApps starts one quorate process per application and waits for the first to end.
func (m *Main) runApps(ctx context.Context, program string, apps []runApp) error {
	log := command.NewLogger(m.Stderr, node.Log{})
	ctx, stop := m.untilSignal(ctx, log)
	defer stop()
	ended := make(chan int, len(apps))
	var running []*child.Process
	var failures []error
	for i, a := range apps {
		p, err := child.Start(child.Options{
			Command: append([]string{program, "run"}, append(a.flags, append([]string{"--"}, a.command...)...)...),
			Dir:     a.dir, Env: environ(m.Env, a.env), Prefix: "== " + a.id + " == ", Stdout: m.Stdout,
			Stderr: m.Stderr,
		})
		if err != nil {
			failures = append(failures, err)
			break
		}
		log.Info("started", "app_id", a.id, "pid", p.Pid(), "command", shown(a.command))
		running = append(running, p)
		go func() { <-p.Done(); ended <- i }()
	}
	first := -1
	if len(failures) == 0 {
		select {
		case first = <-ended:
			log.Info("ending all applications", "reason", "the application "+apps[first].id+" has ended")
			if err := running[first].Err(); err != nil {
				failures = append(failures, &appError{fault.Wrap(err, "cli.run", "application "+apps[first].id),
					running[first].ExitCode()})
			}
		case <-ctx.Done():
			log.Info("ending all applications", "reason", context.Cause(ctx).Error())
		}
	}
	endAll(ctx, running, log)
	return errors.Join(failures...)
}

// endAll stops the processes concurrently and waits for them. endAll has no time limit, because each process limits how
// long it takes to stop.
func endAll(ctx context.Context, running []*child.Process, log *slog.Logger) {
	var all sync.WaitGroup
	for _, p := range running {
		all.Go(func() {
			p.Signal(signalOf(ctx))
			<-p.Done()
			if err := p.Err(); err != nil {
				log.Warn("an application did not stop gracefully", "error", fault.Text(err))
			}
		})
	}
	all.Wait()
}

// Keys of a run file that are not settings.
const (
	keyAppID   = "appID"
	keyAppDir  = "appDirPath"
	keyCommand = "command"
	keyEnv     = "env"
)

// runKeys maps the keys of Dapr run files to settings.
func runKeys() map[string]string {
	return map[string]string{
		"appHealthCheckPath": "app-health-check-path", "appHealthProbeInterval": "app-health-probe-interval",
		"appHealthProbeTimeout": "app-health-probe-timeout",
		"appHealthThreshold":    "app-health-threshold", "enableAppHealthCheck": "enable-app-health-check",
		"daprHTTPPort": "http-port", "daprGRPCPort": "grpc-port",
		"resourcesPath": "resources-path", "resourcesPaths": "resources-path", "configFilePath": "config",
		"maxRequestBodySize": "max-body-size",
		"apiListenAddresses": "listen-address", "appListenAddress": "app-channel-address",
	}
}

// unusedRunKeys returns the keys of Dapr run files that have no effect here.
func unusedRunKeys() []string {
	return []string{"daprInternalGRPCPort", "internalGRPCPort", "profilePort", "enableProfiling", "unixDomainSocket",
		"daprdLogDestination", "appLogDestination",
		"enableApiLogging", "placementHostAddress", "schedulerHostAddress", "readBufferSize"}
}

// parseRunFile returns the applications of a run file. If the content has several problems, the error joins all of
// them.
func parseRunFile(path string, text []byte) ([]runApp, error) {
	r := runReader{path: path, known: runSettings()}
	var doc struct {
		Version int       `yaml:"version"`
		Common  yaml.Node `yaml:"common"`
		Apps    []yaml.Node
	}
	dec := yaml.NewDecoder(bytes.NewReader(userfile.YAML(text)))
	dec.KnownFields(true)
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "cli.runFile", Msg: path + ": " + err.Error(),
			Hint: "the file has version: 1, common: and apps:", Key: path}
	}
	for {
		var more any
		err := dec.Decode(&more)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || more != nil { // more is nil for an empty document, for example after a last ---
			return nil, &fault.Error{Code: fault.Invalid, Op: "cli.runFile", Msg: path + " has a second document",
				Hint: "list all applications under apps: of one document", Key: path}
		}
	}
	if doc.Version > 1 {
		r.fail(&doc.Common, "this program knows version 1", "version %d is unknown", doc.Version)
	}
	common := r.section(&doc.Common, "common")
	var out []runApp
	seen := map[string]bool{}
	for i := range doc.Apps {
		a := r.app(&doc.Apps[i], common)
		if seen[a.id] {
			r.fail(&doc.Apps[i], "give each application an id of its own", "two applications are called %q", a.id)
		}
		seen[a.id] = true
		out = append(out, a)
	}
	if len(out) == 0 && len(r.errs) == 0 {
		return nil, &fault.Error{Code: fault.Invalid, Op: "cli.runFile", Msg: path + " lists no applications",
			Hint: "add them under apps:, each with appID and command", Key: path}
	}
	return out, errors.Join(r.errs...)
}

// runSettings maps every key of a run file to its flag.
func runSettings() map[string]string {
	out := runKeys()
	for _, s := range settings.New().All() {
		if s.Flag() != "" && s.Key != "" {
			out[s.Key] = s.Name
		}
	}
	return out
}

// runReader collects the problems of a run file.
type runReader struct {
	path  string
	known map[string]string
	errs  []error
}

func (r *runReader) fail(at *yaml.Node, hint, format string, args ...any) {
	r.errs = append(r.errs, &fault.Error{Code: fault.Invalid, Op: "cli.runFile",
		Msg: fmt.Sprintf("%s:%d: ", r.path, at.Line) + fmt.Sprintf(format, args...), Hint: hint, Key: r.path})
}

// section is the content of the common section, or of the section of one application.
type section struct {
	values map[string][]string // flag name -> values
	env    map[string]string
	rest   map[string]*yaml.Node
}

func (r *runReader) section(n *yaml.Node, what string) section {
	s := section{values: map[string][]string{}, env: map[string]string{}, rest: map[string]*yaml.Node{}}
	if n.Kind == 0 || n.Tag == "!!null" {
		return s
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "", "%s must be a mapping", what)
		return s
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch flag := r.known[key.Value]; {
		case key.Value == keyEnv:
			if err := value.Decode(&s.env); err != nil {
				r.fail(value, "write NAME: value", "env of %s: %s", what, err)
			}
		case flag != "":
			s.values[flag] = r.texts(value, key.Value)
		case slices.Contains(unusedRunKeys(), key.Value):
		case what != "common" && slices.Contains([]string{keyAppID, keyAppDir, keyCommand}, key.Value):
			s.rest[key.Value] = value
		default:
			r.unknown(key, what)
		}
	}
	return s
}

func (r *runReader) unknown(key *yaml.Node, what string) {
	names := []string{keyAppID, keyAppDir, keyCommand, keyEnv}
	for name := range r.known {
		names = append(names, name)
	}
	hint := "see docs/cli.md for the keys of a run file"
	if near := suggest.For(key.Value, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	r.fail(key, hint, "unknown key %q in %s", key.Value, what)
}

// texts returns the values of a YAML node, which must be a scalar or a list of scalars. If the setting named key is a
// path, relative values are resolved against the directory of the run file.
func (r *runReader) texts(n *yaml.Node, key string) []string {
	nodes := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		nodes = n.Content
	}
	var out []string
	for _, e := range nodes {
		if e.Kind != yaml.ScalarNode {
			r.fail(e, "", "%s must be a text or a list of texts", key)
			continue
		}
		text := e.Value
		if isPathKey(key) && !filepath.IsAbs(text) {
			text = filepath.Join(filepath.Dir(r.path), text)
		}
		out = append(out, text)
	}
	return out
}

func isPathKey(key string) bool {
	switch key {
	case "resourcesPath", "resourcesPaths", "configFilePath", "config", "dataDir", "apiTokenFile", "clusterTokenFile",
		"clusterCertFile", "clusterKeyFile", "clusterCaFile", "componentsSocketsFolder", "configFile":
		return true
	}
	return false
}

func (r *runReader) app(n *yaml.Node, common section) runApp {
	own := r.section(n, "an application")
	a := runApp{env: map[string]string{}, dir: filepath.Dir(r.path)}
	for _, s := range []section{common, own} {
		for name, value := range s.env {
			a.env[name] = value
		}
	}
	if dir := own.rest[keyAppDir]; dir != nil {
		a.dir = dir.Value
		if !filepath.IsAbs(a.dir) {
			a.dir = filepath.Join(filepath.Dir(r.path), a.dir)
		}
	}
	a.id = filepath.Base(a.dir)
	if id := own.rest[keyAppID]; id != nil {
		a.id = id.Value
	}
	if child := own.rest[keyCommand]; child != nil {
		a.command = r.texts(child, keyCommand)
	}
	if len(a.command) == 0 {
		r.fail(n, `write it as a list: command: ["python3", "app.py"]`, "the application %q has no command", a.id)
	}
	a.flags = append([]string{"--app-id", a.id}, merged(common.values, own.values)...)
	return a
}

// merged returns the settings of an application as flags. The parameter common has the settings of all applications,
// and own has those of this application. If both have a setting, the value in own is used.
func merged(common, own map[string][]string) []string {
	names := map[string]bool{}
	for name := range common {
		names[name] = true
	}
	for name := range own {
		names[name] = true
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		values, ok := own[name]
		if !ok {
			values = common[name]
		}
		for _, v := range values {
			if v == "true" || v == "false" {
				out = append(out, "--"+name+"="+v)
				continue
			}
			out = append(out, "--"+name, v)
		}
	}
	return out
}
