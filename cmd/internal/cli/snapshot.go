package cli

import (
	"bufio"
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

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

func (m *Main) snapshotCommand() *cobra.Command {
	c := &cobra.Command{Use: "snapshot", Short: "Save and restore all data of a cluster", Args: cobra.ArbitraryArgs, RunE: group}
	c.AddCommand(m.snapshotSaveCommand(), m.snapshotInspectCommand(), m.snapshotRestoreCommand())
	return c
}

// savedFile is the outcome of save.
type savedFile struct {
	File string `json:"file"`
	backup.Summary
}

func (m *Main) snapshotSaveCommand() *cobra.Command {
	set, out, force := settings.New(), output{}, false
	c := &cobra.Command{
		Use:   "save file [flags]",
		Short: "Save all data of the cluster to a file",
		Long: "Save all data of the cluster to a file, while the cluster goes on. The node asked is the one\n" +
			"that runs on the data directory, by default this user's; it must be a server, and any will do.\n" +
			"The file appears under its name once it is whole, verified and on disk, or not at all.",
		Example: "  quorate snapshot save backup.qs\n  quorate snapshot save /backups/$(date +%F).qs --json",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		a, err := m.adminOf(c, set)
		if err != nil {
			return err
		}
		ctx, release := m.interruptible(c.Context())
		defer release()
		sum, err := m.saveTo(ctx, a, args[0], force)
		if err != nil {
			return err
		}
		if out.json() {
			return writeJSON(m.Stdout, savedFile{args[0], sum})
		}
		_, err = fmt.Fprintf(m.Stdout, "Saved %d keys of cluster %s to %s (%s).\n", sum.Totals.Keys, sum.ClusterID, args[0], bytesText(int64(sum.Totals.Bytes)))
		return err
	}
	bindAdmin(c, set, &out)
	c.Flags().BoolVar(&force, "force", false, "replace the file if it exists")
	return c
}

// adminOf finds the node of the data directory that the flags choose.
func (m *Main) adminOf(c *cobra.Command, set *settings.Set) (*adminClient, error) {
	dir, err := m.adminDir(c, set)
	if err != nil {
		return nil, err
	}
	return &adminClient{dataDir: dir}, nil
}

// interruptible ends the context at the first signal, so that what was begun is cleaned up.
func (m *Main) interruptible(ctx context.Context) (context.Context, func()) {
	signals, release := m.Signals()
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals:
			cancel(fault.New(fault.Unavailable, "cli", "interrupted"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		release()
	}
}

// saveTo writes the backup beside path and gives it its name when it is whole.
func (m *Main) saveTo(ctx context.Context, a *adminClient, path string, force bool) (sum backup.Summary, err error) {
	if _, err := os.Lstat(path); err == nil && !force {
		return sum, errExists(path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.partial")
	if err != nil {
		return sum, fileError("the backup cannot be written", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // after a success it is gone already
	defer func() { _ = f.Close() }()
	p := m.progress("saved")
	sum, err = a.save(ctx, io.MultiWriter(f, p))
	p.end()
	if err != nil {
		return sum, because(ctx, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return sum, fileError("the backup cannot be written", path, err)
	}
	return sum, publish(f.Name(), path, force)
}

// because says that a signal ended what failed, if one did.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// publish gives a file its name, durably; without force it replaces nothing.
func publish(from, to string, force bool) error {
	var err error
	if force {
		err = os.Rename(from, to)
	} else if err = os.Link(from, to); errors.Is(err, fs.ErrExist) {
		return errExists(to)
	} else if err != nil { // a file system without links
		err = os.Rename(from, to)
	}
	if err != nil {
		return fileError("the backup cannot be given its name", to, err)
	}
	d, err := os.Open(filepath.Dir(to))
	if err != nil {
		return fileError("the directory of the backup cannot be synced", to, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fileError("the directory of the backup cannot be synced", to, err)
	}
	return nil
}

func errExists(path string) error {
	return &fault.Error{Code: fault.Conflict, Op: "cli.snapshot", Msg: path + " exists", Hint: "choose another name, or replace it with --force"}
}

func fileError(what, path string, err error) error {
	return &fault.Error{Code: fault.Unavailable, Op: "cli.snapshot", Msg: what + ": " + path, Err: err}
}

func (m *Main) snapshotInspectCommand() *cobra.Command {
	out := output{}
	c := &cobra.Command{
		Use:     "inspect file [flags]",
		Short:   "Verify a backup and show what it holds",
		Long:    "Verify every checksum of a backup and show what it holds. No node is needed.",
		Example: "  quorate snapshot inspect backup.qs",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		sum, err := inspect(args[0])
		if err != nil {
			return err
		}
		if out.json() {
			return writeJSON(m.Stdout, savedFile{args[0], sum})
		}
		return printBackup(m.Stdout, sum)
	}
	out.bind(c)
	return c
}

// inspect verifies a file.
func inspect(path string) (backup.Summary, error) {
	f, err := os.Open(path)
	if err != nil {
		return backup.Summary{}, fileError("the backup cannot be read", path, rootPath(err))
	}
	defer func() { _ = f.Close() }()
	sum, err := backup.Inspect(f, splitStore)
	if err != nil {
		return sum, fault.Wrap(err, "cli.snapshot", path)
	}
	return sum, nil
}

// rootPath leaves out what fs.PathError repeats.
func rootPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// splitStore takes the cluster-wide id of a store apart.
func splitStore(id string) (namespace, name string) {
	i := strings.LastIndexByte(id, '/')
	return id[:max(i, 0)], id[i+1:]
}

func printBackup(w io.Writer, s backup.Summary) error {
	err := table(w, [][]string{
		{"Cluster", fmt.Sprintf("%s (%s), %s", s.ClusterID, dash(s.Cluster), count(int(s.Partitions), "partition"))},
		{"Saved", fmt.Sprintf("%s by %s, version %s", s.Created.UTC().Format(time.RFC3339), dash(s.Node), dash(s.Program))},
		{"Formats", fmt.Sprintf("file %d, commands %d", s.Formats.File, s.Formats.Command)},
		{"Holds", fmt.Sprintf("%d keys, %d remembered requests, %s", s.Totals.Keys, s.Totals.Remembered, bytesText(int64(s.Totals.Bytes)))},
		{"Verified", "every checksum matches"},
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"GROUP", "TERM", "INDEX", "APPLIED", "REVISION", "KEYS", "SIZE"}}
	for i, g := range s.Groups {
		u := func(n uint64) string { return strconv.FormatUint(n, 10) }
		rows = append(rows, []string{u(uint64(g.ID)), u(g.Term), u(g.Index), u(g.Applied), u(g.Revision), u(s.Parts[i].Keys), bytesText(int64(s.Parts[i].Bytes))})
	}
	fmt.Fprintln(w)
	if err := table(w, rows); err != nil {
		return err
	}
	rows = [][]string{{"STORE", "NAMESPACE", "KEYS", "EXPIRING", "DATA"}}
	for _, st := range s.Stores {
		rows = append(rows, []string{st.Name, dash(st.Namespace), strconv.FormatUint(st.Keys, 10), strconv.FormatUint(st.Expiring, 10), bytesText(int64(st.Bytes))})
	}
	fmt.Fprintln(w)
	return table(w, rows)
}

func (m *Main) snapshotRestoreCommand() *cobra.Command {
	set, out, yes := settings.New(), output{}, false
	c := &cobra.Command{
		Use:   "restore file [flags]",
		Short: "Replace all data of the cluster by a backup",
		Long: "Replace all data of the cluster by a backup: of this cluster, which goes on, or of another\n" +
			"one with the same number of partitions. Everything written since the backup is lost, on every\n" +
			"server. Until the file has been read to its end nothing changes. No ETag given out before\n" +
			"stays valid. The node asked is the one that runs on the data directory.",
		Example: "  quorate snapshot restore backup.qs\n  quorate snapshot restore backup.qs --yes",
		Args:    cobra.ExactArgs(1),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		a, err := m.adminOf(c, set)
		if err != nil {
			return err
		}
		r, err := m.restoreFrom(c.Context(), a, args[0], yes)
		if err != nil {
			return err
		}
		if out.json() {
			return writeJSON(m.Stdout, r)
		}
		_, err = fmt.Fprintf(m.Stdout, "Restored %d keys in %d groups, as of %s.\n", r.Keys, r.Groups, r.Created.UTC().Format(time.RFC3339))
		return err
	}
	bindAdmin(c, set, &out)
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (m *Main) restoreFrom(ctx context.Context, a *adminClient, path string, yes bool) (r api.RestoreResult, err error) {
	sum, err := inspect(path)
	if err != nil {
		return r, err
	}
	if !yes {
		var s api.NodeStatus
		if err := a.get(ctx, "/v1/status", &s); err != nil {
			return r, err
		}
		fmt.Fprintf(m.Stderr, "All data of cluster %s (%s), on every server, is replaced by %s:\n%d keys of cluster %s, saved %s.\n",
			s.Node.ClusterID, s.Node.Cluster, path, sum.Totals.Keys, sum.ClusterID, sum.Created.UTC().Format(time.RFC3339))
		if err := m.confirm(s.Node.Cluster, "the name of the cluster"); err != nil {
			return r, err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return r, fileError("the backup cannot be read", path, rootPath(err))
	}
	defer func() { _ = f.Close() }()
	p := m.progress("sent")
	err = a.restore(ctx, io.TeeReader(f, p), &r)
	p.end()
	return r, err
}

// confirm asks to type a word; anything else is a no.
func (m *Main) confirm(word, what string) error {
	fmt.Fprintf(m.Stderr, "Type %s (%s) to go on: ", what, word)
	line, err := bufio.NewReader(m.Stdin).ReadString('\n')
	if strings.TrimSpace(line) == word {
		return nil
	}
	fmt.Fprintln(m.Stderr)
	if errors.Is(err, io.EOF) && line == "" {
		return usagef("nobody answers: say --yes to go on without being asked")
	}
	return &fault.Error{Code: fault.Denied, Op: "cli.confirm", Msg: "not confirmed; nothing was changed"}
}

// progress tells a person how far long work is.
type progress struct {
	w     io.Writer // nil = nobody looks
	verb  string
	bytes int64
	shown time.Time
}

func (m *Main) progress(verb string) *progress {
	p := &progress{verb: verb}
	if isTerminal(m.Stderr) {
		p.w = m.Stderr
	}
	return p
}

// Write counts.
func (p *progress) Write(b []byte) (int, error) {
	p.bytes += int64(len(b))
	if p.w != nil && time.Since(p.shown) > 100*time.Millisecond {
		p.shown = time.Now()
		fmt.Fprintf(p.w, "\r%s %s ", bytesText(p.bytes), p.verb)
	}
	return len(b), nil
}

// end takes the line away again.
func (p *progress) end() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\033[K")
	}
}

// faultOf decodes a failure that came with a stream.
func faultOf(text string) error {
	if !json.Valid([]byte(text)) {
		return fault.New(fault.Internal, "cli.snapshot", "the backup broke off")
	}
	return fault.Unmarshal([]byte(text))
}
