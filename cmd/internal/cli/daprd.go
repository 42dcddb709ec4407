package cli

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/daprd"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/node"
)

// daprdName is the name of the command daprd. A program file with this name, for example a symbolic link to quorate,
// runs the same command.
const daprdName = "daprd"

// daprdWait is how long daprd --wait waits for a sidecar, as in Dapr.
const daprdWait = 60 * time.Second

// args returns the command line of the program without the program name. If the program name is daprd, the result
// begins with the command daprd.
func (m *Main) args() []string {
	if filepath.Base(m.Program) == daprdName {
		return append([]string{daprdName}, m.Args...)
	}
	return m.Args
}

// daprdCommand returns the command that starts a node from a command line of Dapr's sidecar.
func (m *Main) daprdCommand() *cobra.Command {
	set := settings.New()
	bound := pflag.NewFlagSet(daprdName, pflag.ContinueOnError)
	set.Bind(bound)
	line := daprd.New(bound)
	c := &cobra.Command{
		Use:   "daprd [flags]",
		Short: "Start a node with the command line of Dapr's sidecar",
		Long: "Start a node with the command line of daprd, the sidecar of Dapr 1.18. It takes every flag of\n" +
			"daprd, with one dash or two. Flags that have no meaning in Quorate are listed in one line of the\n" +
			"log. The same happens when the program is called by the name daprd, for example through a\n" +
			"symbolic link. Flags of quorate run that daprd does not have work, too.",
		Example: "  quorate daprd --app-id orders --app-port 8080 --dapr-http-port 3500\n" +
			"  ln -s $(which quorate) ~/.dapr/bin/daprd",
		Args: cobra.ArbitraryArgs,
	}
	line.Bind(c.Flags())
	c.SetUsageFunc(func(c *cobra.Command) error {
		fmt.Fprintf(c.OutOrStdout(), "Usage:\n  %s\n\n%s", c.UseLine(), daprdHelp())
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := line.Finish(); err != nil {
			return command.Usage(err)
		}
		v := m.Version
		switch line.Asks() {
		case daprd.AsksVersion:
			_, err := fmt.Fprintln(m.Stdout, v.Version)
			return err
		case daprd.AsksBuildInfo:
			_, err := fmt.Fprintf(m.Stdout, "Version: %s\nGit Commit: %s\nGo: %s\n", v.Version, v.Commit,
				runtime.Version())
			return err
		}
		config, err := m.Resolve(set, bound, nil)
		if err != nil {
			return err
		}
		if len(config.Cluster.Join) > 0 && config.Cluster.Advertise == "" {
			config.Cluster.Advertise = m.Getenv("DAPR_HOST_IP")
		}
		config.API.DisableH2C = truthy(m.Getenv("DAPR_HTTP_DISABLE_H2C"))
		config.Dapr = true
		config.API.DeclaredOnly = len(config.Components.Paths) > 0
		if line.Asks() == daprd.AsksWait {
			return awaitOutbound(c.Context(), config)
		}
		config, warnings := withData(config)
		if config.Components.Sockets == "" {
			folder, warning := daprd.SocketsFolder(pluggable.DefaultFolder, os.Getuid())
			if config.Components.Sockets = folder; warning != "" {
				warnings = append(warnings, warning)
			}
		}
		if err := config.Validate(); err != nil {
			return command.Usage(err)
		}
		return m.runNode(c.Context(), config, append(warnings, line.Notes(args, m.Getenv)...))
	}
	return c
}

// truthy reports whether Dapr takes the value of a variable for true.
func truthy(s string) bool {
	return slices.Contains([]string{"y", "yes", "true", "t", "on", "1"}, strings.ToLower(strings.TrimSpace(s)))
}

// daprdHelp lists the flags of daprd and what they do here.
func daprdHelp() string {
	var b strings.Builder
	var rows [][]string
	for _, f := range daprd.Flags() {
		text := string(f.Effect)
		if f.Note != "" {
			text += ": " + strings.ReplaceAll(f.Note, "`", "")
		}
		rows = append(rows, []string{"  --" + f.Name, text})
	}
	b.WriteString("Flags of daprd:\n")
	_ = command.Table(&b, rows) // writing to a Builder never fails
	b.WriteString("\nquorate run --help lists the flags that only Quorate has.\n")
	return b.String()
}

// awaitOutbound waits until the sidecar on the HTTP port of c can serve its application. It returns fault.Timeout if
// this takes longer than daprdWait.
func awaitOutbound(ctx context.Context, c node.Config) error {
	ctx, cancel := context.WithTimeout(ctx, daprdWait)
	defer cancel()
	at := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(c.API.HTTP.Number)) + "/v1.0/healthz/outbound"
	client := &http.Client{Transport: rest.Transport(nil), Timeout: healthTime, CheckRedirect: command.NoRedirect}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode/100 == 2 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return &fault.Error{Code: fault.Timeout, Op: "cli.wait",
				Msg: "the sidecar is not ready: " + at, Err: err, Hint: "give its port with --dapr-http-port"}
		case <-tick.C:
		}
	}
}

// withData returns c with a directory for durable state. If c has no such directory, for example because the user has
// no home directory, withData chooses a temporary directory and also returns a warning. If the node joins a cluster, c
// is not changed.
func withData(c node.Config) (node.Config, []string) {
	if c.Data.Dir != "" || c.Data.StateDir != "" || len(c.Cluster.Join) > 0 {
		return c, nil
	}
	c.Data.StateDir = filepath.Join(c.Data.RuntimeDir, "state")
	c = c.WithDefaults()
	return c, []string{"the data directory is temporary, because this user has no home directory: set HOME, or name " +
		"a directory on a durable disk with --data-dir (" + c.Data.Dir + ")"}
}
