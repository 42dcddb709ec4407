package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/appcmd"
	"github.com/quorate/quorate/cmd/internal/backupcmd"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/node"
)

func (m *Main) runCommand() *cobra.Command {
	set := settings.New()
	c := &cobra.Command{
		Use:   "run [flags] [-- command args...]",
		Short: "Start a node, and an application beside it",
		Long: "Start a node. Without any flag it is a complete single-node cluster: the HTTP API on\n" +
			"127.0.0.1:3500, a state store named statestore, and a durable data directory of this user.\n\n" +
			"A command after -- runs beside the node and finds the ports in APP_PORT and DAPR_HTTP_PORT.\n" +
			"When the node or the command ends, the other one is stopped, too. With -f, a run file lists\n" +
			"the applications to run; each gets its own node.",
		Example: "  quorate run\n  quorate run --app-id orders --app-port 8080 -- python3 orders.py\n" +
			"  quorate run -f apps.yaml",
	}
	var file string
	c.Flags().StringVarP(&file, "run-file", "f", "", "`file` that lists the applications to run")
	c.RunE = func(c *cobra.Command, args []string) error {
		child, err := childCommand(c, args)
		if err != nil {
			return err
		}
		if file != "" {
			return m.runFile(c, file, child)
		}
		config, err := m.Resolve(set, c.Flags(), child)
		if err != nil {
			return err
		}
		if err := config.Validate(); err != nil {
			return command.Usage(err)
		}
		warnings := set.Warnings()
		for _, err := range set.UnknownVariables(m.Env, backupcmd.KeyEnv) {
			warnings = append(warnings, fault.Text(err))
		}
		return m.runNode(c.Context(), config, warnings)
	}
	withSettings(c, set)
	return c
}

// childCommand returns the arguments after "--". It refuses any arguments before "--".
func childCommand(c *cobra.Command, args []string) ([]string, error) {
	dash := c.ArgsLenAtDash()
	if dash < 0 {
		dash = len(args)
	}
	if dash > 0 {
		return nil, command.Usagef("%q is not a flag (put a command to run beside the node after --)", args[0])
	}
	return args, nil
}

// runNode opens a node, waits until it fails or a stop is requested, and closes it.
func (m *Main) runNode(ctx context.Context, c node.Config, warnings []string) error {
	begin := time.Now()
	to := m.Stderr
	if c.Dapr {
		to = m.Stdout // daprd logs to standard output too
	}
	log := command.NewLogger(to, c.Log)
	for _, w := range warnings {
		log.Warn(w)
	}
	ctx, stop := m.untilSignal(ctx, log)
	defer stop()
	ctx, hungUp := context.WithCancelCause(ctx)
	defer hungUp(nil)
	hangups := onHangup()
	n, err := m.Open(ctx, c, log)
	if err != nil {
		if ctx.Err() != nil {
			log.Info("the start was interrupted")
			return nil
		}
		return err
	}
	go hangups.follow(ctx, n, func() { hungUp(stopSignal{syscall.SIGHUP}) })
	m.announce(c, n.Addresses(), log)
	if c.Dapr { // tools wait for this text
		log.Info(fmt.Sprintf("dapr initialized. Status: Running. Init Elapsed %dms", time.Since(begin).Milliseconds()))
	}
	run, output := m.record(c, n.Addresses(), begin, log)
	defer run.end()
	app, err := m.startApp(c, n.Addresses(), output, log)
	if err != nil {
		return errors.Join(err, m.closeNode(n, c, log))
	}
	failure := app.wait(ctx, n)
	if failure != nil {
		log.Error("the node has stopped working and is closed", "error", failure)
	} else {
		log.Info("stopping", "reason", app.stopReason(ctx))
	}
	ended := app.end(ctx, c.Grace, log)
	return errors.Join(failure, ended, m.closeNode(n, c, log))
}

// runRecord lets quorate list, stop and logs find this process.
type runRecord struct {
	presence *hostshare.Presence // nil = there is none
	output   *appcmd.Output      // nil = the output of the application is not kept
}

// record announces this process, and keeps the output of its application. If a part of this fails, for example on a
// read-only file system, it logs the failure and the node runs without that part.
func (m *Main) record(c node.Config, a node.Addresses, begin time.Time, log *slog.Logger) (runRecord, io.Writer) {
	var out runRecord
	var err error
	about := hostshare.Run{Started: begin.UTC()}
	var to io.Writer = io.Discard
	if len(c.App.Command) > 0 && c.Data.StateDir != "" {
		if out.output, err = appcmd.KeepOutput(c.Data.RuntimeDir, c.Data.StateDir, c.App.ID); err != nil {
			log.Warn("quorate logs will not show the output of the application", "error", err)
		} else {
			to, about.Log = out.output, out.output.Path()
		}
	}
	if out.presence, err = appcmd.Announce(c.Data.RuntimeDir, appcmd.Describe(c, a, about)); err != nil {
		log.Info("quorate list and stop will not find this node", "error", err)
	}
	return out, to
}

func (r runRecord) end() {
	if r.output != nil {
		_ = r.output.Close() // every line was written before
	}
	if r.presence != nil {
		_ = r.presence.Close() // the next list removes a note that stays
	}
}

func (m *Main) closeNode(n Node, c node.Config, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Grace)
	defer cancel()
	err := n.Close(ctx)
	switch {
	case err != nil:
	case c.Dapr: // tools wait for this text
		log.Info("Daprd shutdown gracefully")
	default:
		log.Info("stopped")
	}
	return err
}

// untilSignal returns a context that ends at the first signal. The second signal ends the process immediately. The
// caller must call the returned function to stop receiving signals.
func (m *Main) untilSignal(ctx context.Context, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals, release := m.Signals()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for first := true; ; first = false {
			select {
			case <-quit:
				return
			case s := <-signals:
				if !first {
					log.Warn("ending immediately after a second signal", "signal", s.String())
					m.exit(exitFailed)
					return
				}
				cancel(stopSignal{s})
			}
		}
	}()
	return ctx, func() {
		close(quit)
		<-done
		release()
		cancel(nil)
	}
}

func (m *Main) exit(code int) {
	if m.Exit == nil {
		os.Exit(code)
	}
	m.Exit(code)
}

// announce reports where the node listens. It logs a line with the addresses. If the log format is text, it also
// prints a few readable lines to standard output.
func (m *Main) announce(c node.Config, a node.Addresses, log *slog.Logger) {
	for _, app := range a.Apps[min(1, len(a.Apps)):] {
		log.Info("serving another application", "app_id", app.ID, "api", strings.Join(app.API, ","), "grpc",
			strings.Join(app.GRPC, ","))
	}
	log.Info("the node is running", "app_id", c.App.ID, "api", strings.Join(a.API, ","), "grpc",
		strings.Join(a.GRPC,
			","), "metrics", a.Metrics, "console", a.Console, "data_dir", a.DataDir, "admin_socket", a.Admin, "version",
		c.Version)
	for _, p := range []struct {
		name   string
		wanted node.Port
		got    string
	}{{"metrics", c.Metrics.Port, a.Metrics}, {"console", c.Console.Port, a.Console},
		{"gossip", c.Cluster.Gossip, a.Gossip},
		{"peer", c.Cluster.Peer, a.Peer}} {
		if p.got != "" && !p.wanted.Given && !strings.HasSuffix(p.got, ":"+strconv.Itoa(p.wanted.Number)) {
			log.Info("the default port is in use, another one was chosen", "for", p.name, "wanted", p.wanted.Number,
				"address", p.got)
		}
	}
	if !c.Log.JSON {
		banner(m.Stdout, c, a)
	}
}

func banner(w io.Writer, c node.Config, a node.Addresses) {
	fmt.Fprintf(w, "Quorate %s is running for application %q. Ctrl-C stops it.\n", c.Version, c.App.ID)
	for _, api := range a.API {
		fmt.Fprintf(w, "  API      %s\n", urlOf(api))
	}
	for _, rpc := range a.GRPC {
		fmt.Fprintf(w, "  gRPC     %s\n", rpc)
	}
	for _, app := range a.Apps[min(1, len(a.Apps)):] {
		fmt.Fprintf(w, "  API      %s for application %q\n", urlOf(app.API[0]), app.ID)
		for _, rpc := range app.GRPC {
			fmt.Fprintf(w, "  gRPC     %s for application %q\n", rpc, app.ID)
		}
	}
	if a.Metrics != "" {
		fmt.Fprintf(w, "  Metrics  http://%s/metrics\n", a.Metrics)
	}
	if a.Console != "" {
		fmt.Fprintf(w, "  Console  http://%s (quorate console prints a link that signs in)\n", a.Console)
	}
	if a.SharedDir != "" {
		fmt.Fprintf(w, "  Shared   %s (another node of this user holds this data; when it ends, this one takes over)\n",
			a.SharedDir)
	}
	fmt.Fprintf(w, "  Data     %s\n  Admin    %s\n", a.DataDir, a.Admin)
}

// urlOf returns the URL of an HTTP API. A Unix socket stays as it is.
func urlOf(address string) string {
	if strings.HasPrefix(address, "unix:") {
		return address
	}
	return "http://" + address
}
