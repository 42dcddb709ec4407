package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
)

func (m *Main) debugCommand() *cobra.Command {
	c := &cobra.Command{Use: "debug", Short: "Collect what is needed to find a fault"}
	c.AddCommand(m.debugBundleCommand())
	c.RunE = command.Group
	return c
}

func (m *Main) debugBundleCommand() *cobra.Command {
	set, other, file, seconds := settings.New(), "", "", 0
	c := &cobra.Command{
		Use:   "bundle [flags]",
		Short: "Save an archive with the status, settings, metrics, log and profiles of a node",
		Long: "Save an archive (tar.gz) with the status of the node and the cluster, the checks of doctor, the\n" +
			"settings, the metrics, the last log records, the versions, and profiles of the processor, the\n" +
			"memory and the goroutines. It has no tokens, keys, component metadata or stored values; it has\n" +
			"the names of nodes, applications and stores, and addresses. It uses the node of the data\n" +
			"directory, by default this user's.",
		Example: "  quorate debug bundle\n  quorate debug bundle --node b --seconds 30 --output b.tar.gz",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		if limit := int(adminapi.MaxDebugProfile.Seconds()); seconds < 1 || seconds > limit {
			return command.Usagef("--seconds %d is refused (give 1 to %d)", seconds, limit)
		}
		dir, err := m.AdminDir(c, set)
		if err != nil {
			return err
		}
		if file == "" {
			file = "quorate-debug-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
		}
		ctx, release := m.Interruptible(c.Context())
		defer release()
		return m.saveBundle(ctx, &command.AdminClient{DataDir: dir}, other, file, seconds)
	}
	set.BindOnly(c.Flags(), "data-dir", "cluster", "config-file")
	command.BindNode(c, &other)
	c.Flags().StringVar(&file, "output", "",
		"`file` for the archive; it must not exist (default quorate-debug-TIME.tar.gz)")
	c.Flags().IntVar(&seconds, "seconds", 5, "`duration` of the processor profile")
	return c
}

// saveBundle saves the bundle of a node to a new file, which only this user can read. The file appears under its name
// only when it is complete.
func (m *Main) saveBundle(ctx context.Context, a *command.AdminClient, node, file string, seconds int) error {
	path := adminapi.DebugBundleRequest(seconds)
	if node != "" {
		path = adminapi.NodePath(node, path)
	}
	refused := func(err error) error {
		return &fault.Error{Code: fault.Invalid, Op: "cli.debug", Msg: "the file of the bundle cannot be created",
			Hint: "choose another one with --output", Err: err}
	}
	if _, err := os.Lstat(file); err == nil { // checked before the node collects the bundle
		return refused(&fs.PathError{Op: "open", Path: file, Err: fs.ErrExist})
	}
	out, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*.partial")
	if err != nil {
		return refused(err)
	}
	defer func() { _ = os.Remove(out.Name()) }() // after a success, this is at most a second name
	defer func() { _ = out.Close() }()
	err = a.Stream(ctx, http.MethodGet, path, nil, func(r *http.Response) error {
		_, err := io.Copy(out, r.Body)
		return err
	})
	if err != nil {
		return command.Because(ctx, err)
	}
	if err := errors.Join(out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := durable.Publish(out.Name(), file, false); err != nil {
		return refused(err)
	}
	_, err = fmt.Fprintln(m.Stdout, file)
	return err
}
