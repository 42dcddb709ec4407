package backupcmd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

// save writes a backup to w and verifies it while it is written.
func save(ctx context.Context, a *command.AdminClient, w io.Writer) (sum backup.Summary, err error) {
	err = a.Stream(ctx, http.MethodGet, adminapi.BackupPath, nil, func(resp *http.Response) error {
		disk := &checked{w: w}
		if sum, err = backup.Inspect(io.TeeReader(resp.Body, disk), splitStore); err == nil {
			return nil
		}
		if disk.err != nil {
			return &fault.Error{Code: fault.Unavailable, Op: "cli.backup", Msg: "the backup cannot be written",
				Err: disk.err}
		}
		_, _ = io.Copy(io.Discard, resp.Body) // the trailer follows the body
		if why := resp.Trailer.Get(adminapi.ErrorTrailer); why != "" {
			return faultOf(why)
		}
		if ctx.Err() == nil && (fault.Is(err, fault.Corrupt) || errors.Is(err, io.ErrUnexpectedEOF)) {
			return &fault.Error{Code: fault.Unavailable, Op: "cli.backup", Msg: "the node ended the backup early",
				Err: err, Hint: "see its log, then save again"}
		}
		return err
	})
	return sum, err
}

// checked is a writer that remembers why writing failed.
type checked struct {
	w   io.Writer
	err error
}

func (c *checked) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		c.err = err
	}
	return n, err
}

// restore sends the backup r to the node. The response arrives when the restore is complete, and is decoded into v.
func restore(ctx context.Context, a *command.AdminClient, r io.Reader, v any) error {
	return a.Stream(ctx, http.MethodPost, adminapi.BackupPath, io.NopCloser(r), func(resp *http.Response) error {
		if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
			return &fault.Error{Code: fault.Indeterminate, Op: "cli.restore", Err: err,
				Msg:  "the restore was completed, but the node's answer cannot be read",
				Hint: "check the data with quorate stores; the node's log has the result of the restore"}
		}
		return nil
	})
}
