package clustercmd

import (
	"context"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
)

func (m *commands) consoleCommand() *cobra.Command {
	set, out, show := settings.New(), command.Output{}, false
	c := &cobra.Command{
		Use:   "console [flags]",
		Short: "Open the web console of a node",
		Long: "Open the web console of a node in the browser. The command prints a link that signs one\n" +
			"browser in; it works once and for ten minutes. It uses the node of the data directory, by\n" +
			"default this user's.",
		Example: "  quorate console\n  ssh -L 9091:127.0.0.1:9091 host quorate console --print",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		return m.AskAdmin(c, set, "", out.JSON(), func(ctx context.Context, a *command.AdminClient, asJSON bool) error {
			var link schema.ConsoleLink
			if err := a.Post(ctx, adminapi.ConsolePath, struct{}{}, &link); err != nil {
				return err
			}
			if asJSON {
				return command.WriteJSON(m.Stdout, link)
			}
			if !show && m.browse(link.URL) {
				_, _ = fmt.Fprintln(m.Stderr, "The browser opens this link:")
			}
			return printLink(m.Stdout, m.Stderr, link)
		})
	}
	command.BindAdmin(c, set, &out)
	c.Flags().BoolVar(&show, "print", false, "print the link and do not open the browser")
	return c
}

// dashboardCommand is consoleCommand with the name and the flags of Dapr's command.
func (m *commands) dashboardCommand() *cobra.Command {
	c, kubernetes, namespace, address, port := m.consoleCommand(), false, "", "", 0
	c.Use, c.Example = "dashboard [flags]", "  quorate dashboard\n  quorate dashboard --print"
	c.Short = "Open the web console of a node, as console does"
	f := c.Flags()
	f.BoolVarP(&kubernetes, "kubernetes", "k", false, "refused: it exists in Dapr's command")
	f.StringVarP(&namespace, "namespace", "n", "", "refused: it exists in Dapr's command")
	f.IntVarP(&port, "port", "p", 0, "has no effect: the node serves its console at --console-port")
	f.StringVarP(&address, "address", "a", "", "has no effect: the node serves its console itself")
	for _, name := range []string{"kubernetes", "namespace", "port", "address"} {
		f.Lookup(name).Hidden = true
	}
	open := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if kubernetes || namespace != "" {
			return command.Usage(&fault.Error{Code: fault.Invalid, Op: "cli.dashboard",
				Msg:  "quorate does not talk to Kubernetes, so --kubernetes and --namespace cannot be served",
				Hint: "use: kubectl port-forward POD 9091; kubectl exec POD -c quorate -- /quorate console --print"})
		}
		if port != 0 || address != "" {
			fmt.Fprintln(m.Stderr, "The node serves its console itself, at its --console-port: --port and --address "+
				"have no effect.")
		}
		return open(c, args)
	}
	return c
}

// printLink prints the link to out, and an explanation to notes. out gets nothing but the link, so that scripts can
// read it.
func printLink(out, notes io.Writer, l schema.ConsoleLink) error {
	if _, err := fmt.Fprintln(out, l.URL); err != nil {
		return err
	}
	_, err := fmt.Fprintln(notes, "It signs one browser in, once, until "+l.Expires.Local().Format(time.TimeOnly)+".")
	return err
}

// browse opens a link in the browser of the desktop, and reports whether it could start the browser. It fails, for
// example, if there is no desktop.
//
// The link is a secret, because it signs in whoever opens it. browse passes it in a file that only this user can read,
// because other users can see command lines.
func (m *commands) browse(link string) bool {
	opener := "xdg-open"
	switch {
	case runtime.GOOS == "darwin":
		opener = "open"
	case m.Getenv("DISPLAY") == "" && m.Getenv("WAYLAND_DISPLAY") == "":
		return false
	}
	path, err := exec.LookPath(opener)
	if err != nil {
		return false
	}
	page, err := os.CreateTemp("", "quorate-console-*.html") // mode 0600; the link in it works once
	if err != nil {
		return false
	}
	_, err = fmt.Fprintf(page, "<!doctype html><meta http-equiv=refresh content=\"0; url=%s\">\n",
		html.EscapeString(link))
	if closing := page.Close(); err != nil || closing != nil {
		return false
	}
	c := exec.Command(path, page.Name()) //nolint:gosec // a file that was made here
	if c.Start() != nil {
		return false
	}
	go func() { _ = c.Wait() }() // otherwise the ended command would remain as a zombie process
	return true
}
