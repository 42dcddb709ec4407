package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"

	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

// stream sends a request whose body or answer is too long to be held, and hands the answer
// to take. It takes as long as ctx lasts.
func (a *adminClient) stream(ctx context.Context, method, path string, body io.Reader, take func(*http.Response) error) error {
	socket, err := apihttp.FindAdmin(a.dataDir)
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
		req.Header.Set("Content-Type", apihttp.SnapshotType)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return a.unreachable(socket, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return a.unreachable(socket, err)
		}
		return fault.Unmarshal(text)
	}
	return take(resp)
}

// save writes a backup to w and verifies it on the way.
func (a *adminClient) save(ctx context.Context, w io.Writer) (sum backup.Summary, err error) {
	err = a.stream(ctx, http.MethodGet, apihttp.AdminSnapshotPath, nil, func(resp *http.Response) error {
		disk := &checked{w: w}
		if sum, err = backup.Inspect(io.TeeReader(resp.Body, disk), splitStore); err == nil {
			return nil
		}
		if disk.err != nil {
			return &fault.Error{Code: fault.Unavailable, Op: "cli.snapshot", Msg: "the backup cannot be written", Err: disk.err}
		}
		_, _ = io.Copy(io.Discard, resp.Body) // the trailer comes after it
		if why := resp.Trailer.Get(apihttp.AdminErrorTrailer); why != "" {
			return faultOf(why)
		}
		if ctx.Err() == nil && (fault.Is(err, fault.Corrupt) || errors.Is(err, io.ErrUnexpectedEOF)) {
			return &fault.Error{Code: fault.Unavailable, Op: "cli.snapshot", Msg: "the node broke off before the end of the backup", Err: err, Hint: "see its log, and save again"}
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

// restore sends a backup; the answer comes when it is in place.
func (a *adminClient) restore(ctx context.Context, r io.Reader, v any) error {
	return a.stream(ctx, http.MethodPost, apihttp.AdminSnapshotPath, io.NopCloser(r), func(resp *http.Response) error {
		return json.NewDecoder(resp.Body).Decode(v)
	})
}
