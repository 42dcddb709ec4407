package backupcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

func (m *commands) backupCommand() *cobra.Command {
	c := &cobra.Command{Use: "backup", Short: "Save and restore all data of a cluster", Args: cobra.ArbitraryArgs,
		RunE: command.Group}
	c.AddCommand(m.backupSaveCommand(), m.backupInspectCommand(), m.backupRestoreCommand(), m.backupKeygenCommand())
	return c
}

// savedFile is the result of save.
type savedFile struct {
	File      string `json:"file"`
	Encrypted bool   `json:"encrypted"`
	backup.Summary
}

func (m *commands) backupSaveCommand() *cobra.Command {
	set, out, key, force := settings.New(), command.Output{}, m.newBackupKey(), false
	c := &cobra.Command{
		Use: "save file [flags]", SuggestFor: []string{"create", "make", "take"},
		Short: "Save all data of the cluster to a file",
		Long: "Save all data of the cluster to a file while the cluster keeps running. The command uses the\n" +
			"node of the data directory, by default this user's. It must be a server; any server will do.\n" +
			"The file appears under its name only when it is complete, verified and on disk. With\n" +
			"--backup-key-file it is encrypted. Without, it contains all values in plain text.",
		Example: "  quorate backup save backup.qs\n  quorate backup save /backups/$(date +%F).qs --json",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		keys, err := key.read()
		if err != nil {
			return err
		}
		a, err := m.adminOf(c, set)
		if err != nil {
			return err
		}
		ctx, release := m.Interruptible(c.Context())
		defer release()
		sum, err := m.saveTo(ctx, a, args[0], keys, force)
		if err != nil {
			return err
		}
		if out.JSON() {
			return command.WriteJSON(m.Stdout, savedFile{args[0], len(keys) > 0, sum})
		}
		encrypted := ""
		if len(keys) > 0 {
			encrypted = ", encrypted"
		}
		_, err = fmt.Fprintf(m.Stdout, "Saved %s of cluster %s to %s (%s%s).\n",
			command.Count(int(sum.Totals.Keys), "key"), sum.ClusterID, args[0],
			command.BytesText(int64(sum.Totals.Bytes)), encrypted)
		return err
	}
	command.BindAdmin(c, set, &out)
	key.bind(c)
	c.Flags().BoolVar(&force, "force", false, "replace the file if it exists")
	return c
}

// adminOf returns a client for the node of the data directory that the flags choose.
func (m *commands) adminOf(c *cobra.Command, set *settings.Set) (*command.AdminClient, error) {
	dir, err := m.AdminDir(c, set)
	if err != nil {
		return nil, err
	}
	return &command.AdminClient{DataDir: dir}, nil
}

// saveTo writes a backup to a file. If the file exists and force is false, it returns an error. If keys is not empty,
// the backup is encrypted with keys[0].
//
// saveTo writes to a temporary file in the same directory and renames it at the end, so there is never an incomplete
// backup at path.
func (m *commands) saveTo(ctx context.Context, a *command.AdminClient, path string, keys []backup.Key,
	force bool) (sum backup.Summary, err error) {
	if _, err := os.Lstat(path); err == nil && !force {
		return sum, errExists(path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.partial")
	if err != nil {
		return sum, fileError("the backup cannot be written", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // after a success, this is at most a second name
	defer func() { _ = f.Close() }()
	var w io.Writer = f
	seal := func() error { return nil }
	if len(keys) > 0 {
		e, err := backup.Encrypt(f, keys[0])
		if err != nil {
			return sum, fileError("the backup cannot be written", path, err)
		}
		w, seal = e, e.Close
	}
	p := m.Progress("saved", "", 0)
	sum, err = save(ctx, a, io.MultiWriter(w, p))
	p.End()
	if err != nil {
		return sum, command.Because(ctx, err)
	}
	if err := seal(); err != nil {
		return sum, fileError("the backup cannot be written", path, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return sum, fileError("the backup cannot be written", path, err)
	}
	return sum, publish(f.Name(), path, force)
}

// publish renames a file and syncs the change to disk. If a file with the new name exists and force is false, publish
// returns fault.Conflict.
func publish(from, to string, force bool) error {
	err := durable.Publish(from, to, force)
	switch {
	case errors.Is(err, fs.ErrExist):
		return errExists(to)
	case err != nil:
		return fileError("the backup cannot be given its name", to, err)
	}
	return nil
}

func errExists(path string) error {
	return &fault.Error{Code: fault.Conflict, Op: "cli.backup", Msg: path + " exists",
		Hint: "choose another name, or replace it with --force"}
}

func fileError(what, path string, err error) error {
	return &fault.Error{Code: fault.Unavailable, Op: "cli.backup", Msg: what + ": " + path, Err: err}
}

func (m *commands) backupInspectCommand() *cobra.Command {
	out, key := command.Output{}, m.newBackupKey()
	c := &cobra.Command{
		Use:     "inspect file [flags]",
		Short:   "Verify a backup and show its contents",
		Long:    "Verify every checksum of a backup and show its contents. No node is needed.",
		Example: "  quorate backup inspect backup.qs",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		keys, err := key.read()
		if err != nil {
			return err
		}
		sum, encrypted, err := inspect(args[0], keys, key.plain)
		if err != nil {
			return err
		}
		if out.JSON() {
			return command.WriteJSON(m.Stdout, savedFile{args[0], encrypted, sum})
		}
		return printBackup(m.Stdout, sum, encrypted)
	}
	key.bindReading(c)
	out.Bind(c)
	return c
}

// inspect verifies a backup file and returns its summary. If keys is empty, it refuses an encrypted backup. Otherwise
// it refuses a backup that is not encrypted, unless plain is true. The errors are those of backup.Decrypt and
// backup.Inspect.
func inspect(path string, keys []backup.Key, plain bool) (sum backup.Summary, encrypted bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, false, fileError("the backup cannot be read", path, command.RootPath(err))
	}
	defer func() { _ = f.Close() }()
	source, err := backup.Decrypt(f, keys, plain)
	if err == nil {
		sum, err = backup.Inspect(source, splitStore)
	}
	if err != nil {
		return sum, false, fault.Wrap(err, "cli.backup", path)
	}
	return sum, source.Encrypted, nil
}

// splitStore splits the cluster-wide id of a store into namespace and name.
func splitStore(id string) (namespace, name string) {
	i := strings.LastIndexByte(id, '/')
	return id[:max(i, 0)], id[i+1:]
}

func printBackup(w io.Writer, s backup.Summary, encrypted bool) error {
	author := "not authenticated: anyone who can write the file can forge it"
	if encrypted {
		author = "encrypted, by a holder of the key"
	}
	err := command.Table(w, [][]string{
		{"Cluster", fmt.Sprintf("%s (%s), %s", s.ClusterID, command.Dash(s.Cluster),
			command.Count(int(s.Partitions), "partition"))},
		{"Saved", fmt.Sprintf("%s by %s, version %s", s.Created.UTC().Format(time.RFC3339), command.Dash(s.Node),
			command.Dash(s.Program))},
		{"Formats", fmt.Sprintf("file %d, commands %d", s.Formats.File, s.Formats.Command)},
		{"Holds", fmt.Sprintf("%s, %s, %s", command.Count(int(s.Totals.Keys), "key"),
			command.Count(int(s.Totals.Remembered), "remembered request"), command.BytesText(int64(s.Totals.Bytes)))},
		{"Verified", "every checksum matches"},
		{"Author", author},
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"GROUP", "TERM", "INDEX", "APPLIED", "REVISION", "KEYS", "SIZE"}}
	for i, g := range s.Groups {
		u := func(n uint64) string { return strconv.FormatUint(n, 10) }
		rows = append(rows, []string{u(uint64(g.ID)), u(g.Term), u(g.Index), u(g.Applied), u(g.Revision),
			u(s.Parts[i].Keys), command.BytesText(int64(s.Parts[i].Bytes))})
	}
	fmt.Fprintln(w)
	if err := command.Table(w, rows); err != nil {
		return err
	}
	rows = [][]string{{"STORE", "NAMESPACE", "KEYS", "EXPIRING", "DATA"}}
	for _, st := range s.Stores {
		rows = append(rows, []string{st.Name, command.Dash(st.Namespace), strconv.FormatUint(st.Keys, 10),
			strconv.FormatUint(st.Expiring, 10), command.BytesText(int64(st.Bytes))})
	}
	fmt.Fprintln(w)
	return command.Table(w, rows)
}

func (m *commands) backupRestoreCommand() *cobra.Command {
	set, out, key, flags := settings.New(), command.Output{}, m.newBackupKey(), restoreFlags{}
	c := &cobra.Command{
		Use:   "restore file [flags]",
		Short: "Replace all data of the cluster with a backup",
		Long: "Replace all data of the cluster with a backup of this cluster, or of another cluster that has\n" +
			"the same number of partitions. The cluster keeps running. Everything written since the backup\n" +
			"is lost, on every server. Nothing changes until the file has been read to its end. ETags\n" +
			"from before the restore are no longer valid. The command uses the node of the data directory.",
		Example: "  quorate backup restore backup.qs\n  quorate backup restore backup.qs --yes",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		keys, err := key.read()
		if err != nil {
			return err
		}
		a, err := m.adminOf(c, set)
		if err != nil {
			return err
		}
		if flags.interval < 0 {
			return command.Usagef("--progress must not be negative")
		}
		flags.plain = key.plain
		r, err := m.restoreFrom(c.Context(), a, args[0], keys, flags)
		if err != nil {
			return err
		}
		if out.JSON() {
			return command.WriteJSON(m.Stdout, r)
		}
		_, err = fmt.Fprintf(m.Stdout, "Restored %s in %s, as of %s.\n", command.Count(int(r.Keys), "key"),
			command.Count(r.Groups, "group"), r.Created.UTC().Format(time.RFC3339))
		return err
	}
	command.BindAdmin(c, set, &out)
	key.bindReading(c)
	c.Flags().BoolVar(&flags.yes, "yes", false, "do not ask")
	c.Flags().DurationVar(&flags.interval, "progress", 5*time.Second,
		"time between progress lines if standard error is no terminal; 0 = none")
	return c
}

// restoreFlags are flags of backup restore.
type restoreFlags struct {
	plain    bool // a backup that is not encrypted is accepted although there is a key
	yes      bool // do not ask for confirmation
	interval time.Duration
}

func (m *commands) restoreFrom(ctx context.Context, a *command.AdminClient, path string, keys []backup.Key,
	o restoreFlags) (r schema.RestoreResult, err error) {
	sum, _, err := inspect(path, keys, o.plain)
	if err != nil {
		return r, err
	}
	if !o.yes {
		var s schema.NodeStatus
		if err := a.Get(ctx, "/v1/status", &s); err != nil {
			return r, err
		}
		fmt.Fprintf(m.Stderr, "All data of cluster %s (%s), on every server, will be replaced with %s:\n"+
			"%s of cluster %s, saved %s.\n",
			s.Node.ClusterID, s.Node.Cluster, path, command.Count(int(sum.Totals.Keys), "key"), sum.ClusterID,
			sum.Created.UTC().Format(time.RFC3339))
		if err := m.Confirm(s.Node.Cluster, "the name of the cluster"); err != nil {
			return r, err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return r, fileError("the backup cannot be read", path, command.RootPath(err))
	}
	defer func() { _ = f.Close() }()
	// The key is checked again, because the file may have been replaced after its verification.
	source, err := backup.Decrypt(f, keys, o.plain)
	if err != nil {
		return r, fault.Wrap(err, "cli.backup", path)
	}
	info, err := f.Stat()
	if err != nil {
		return r, fileError("the backup cannot be read", path, command.RootPath(err))
	}
	p := m.Progress("sent to the node", command.BytesText(info.Size()), o.interval)
	err = restore(ctx, a, io.TeeReader(source, p), &r)
	p.End()
	return r, err
}

// faultOf decodes the text of an error that the node sent at the end of a stream.
func faultOf(text string) error {
	if !json.Valid([]byte(text)) {
		return fault.New(fault.Internal, "cli.backup", "the backup ended early")
	}
	return fault.Unmarshal([]byte(text))
}
