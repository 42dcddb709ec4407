package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

// stream sends a request whose body or response is too large to be buffered, and passes the response to take. It has
// no timeout; only ctx limits it.
func (a *adminClient) stream(ctx context.Context, method, path string, body io.Reader,
	take func(*http.Response) error) error {
	socket, err := adminapi.FindSocket(a.dataDir)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, body)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", adminapi.BackupType)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return a.unreachable(socket, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotFound {
		return &fault.Error{Code: fault.Unimplemented, Op: "cli.backup",
			Msg:  "the node runs an earlier version, which does not know this command",
			Hint: "use the quorate program that the node was started with"}
	}
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return a.unreachable(socket, err)
		}
		return fault.Unmarshal(text)
	}
	return take(resp)
}

// save writes a backup to w and verifies it while it is written.
func (a *adminClient) save(ctx context.Context, w io.Writer) (sum backup.Summary, err error) {
	err = a.stream(ctx, http.MethodGet, adminapi.BackupPath, nil, func(resp *http.Response) error {
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

// checked remembers why writing failed.
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

// restore sends a backup. The response arrives when the restore is complete.
func (a *adminClient) restore(ctx context.Context, r io.Reader, v any) error {
	return a.stream(ctx, http.MethodPost, adminapi.BackupPath, io.NopCloser(r), func(resp *http.Response) error {
		return json.NewDecoder(resp.Body).Decode(v)
	})
}
