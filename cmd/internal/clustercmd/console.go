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

// printLink prints the link alone to out, so that scripts can read it.
func printLink(out, notes io.Writer, l schema.ConsoleLink) error {
	if _, err := fmt.Fprintln(out, l.URL); err != nil {
		return err
	}
	_, err := fmt.Fprintln(notes, "It signs one browser in, once, until "+l.Expires.Local().Format(time.TimeOnly)+".")
	return err
}

// browse opens link in the browser of the desktop. It returns false if that is impossible, for example without a
// desktop. Other users can see the arguments of commands, so it passes the link in a file that only this user can
// read.
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
	go func() { _ = c.Wait() }() // the command may end before the browser does
	return true
}
