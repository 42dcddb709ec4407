package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"

	"github.com/spf13/cobra"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/raftfsm/datadir"
)

// AdminTime is the timeout of a request to the admin API.
const AdminTime = adminapi.RequestTime

// AdminClient sends requests to the admin API of a node. It connects to the node that runs in DataDir. If Node is set,
// that node forwards the requests to the node with this id.
type AdminClient struct {
	DataDir string
	Node    string // id of the other node; empty = the node of the data directory
}

// AdminCommand returns a command that uses the admin API of a node. Its flags choose the node and the output format.
// The command calls the function ask, which must print JSON if asJSON is true.
func (s *Shell) AdminCommand(use, short string,
	ask func(ctx context.Context, a *AdminClient, asJSON bool) error) *cobra.Command {
	set, out, node := settings.New(), Output{}, ""
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + ".\nIt uses the node of the data directory, by default this user's; --node reaches any other\n" +
			"node of the cluster through it.",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		return s.AskAdmin(c, set, node, out.JSON(), ask)
	}
	BindAdmin(c, set, &out)
	BindNode(c, &node)
	return c
}

// BindNode adds the flag that names another node of the cluster.
func BindNode(c *cobra.Command, node *string) {
	c.Flags().StringVar(node, "node", "", "`id` of the node of the cluster to use, as members lists it "+
		"(default the node of the data directory)")
}

// BindAdmin adds the flags that choose a node and the output format.
func BindAdmin(c *cobra.Command, set *settings.Set, out *Output) {
	set.BindOnly(c.Flags(), "data-dir", "cluster", "config-file")
	out.Bind(c)
}

// AskAdmin calls the function ask with asJSON and a client of the admin API. The flags choose the data directory of the
// node that the client connects to. If the parameter node is not empty, requests are forwarded to the node with this
// id. The context of ask ends after AdminTime.
func (s *Shell) AskAdmin(c *cobra.Command, set *settings.Set, node string, asJSON bool,
	ask func(ctx context.Context, a *AdminClient, asJSON bool) error) error {
	dir, err := s.AdminDir(c, set)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), AdminTime)
	defer cancel()
	return ask(ctx, &AdminClient{DataDir: dir, Node: node}, asJSON)
}

// AdminDir returns the data directory of the node that the flags choose.
func (s *Shell) AdminDir(c *cobra.Command, set *settings.Set) (string, error) {
	config, err := s.Resolve(set, c.Flags(), nil)
	if err != nil {
		return "", err
	}
	if config.Data.Dir == "" {
		return "", Usagef("the data directory is unknown (name it with --data-dir)")
	}
	return ChooseDir(c.Context(), config)
}

// Get sends a GET request to path and decodes the response into v.
func (a *AdminClient) Get(ctx context.Context, path string, v any) error {
	return a.send(ctx, http.MethodGet, path, nil, v)
}

// Post sends a POST request to path, with body as JSON, and decodes the response into v.
func (a *AdminClient) Post(ctx context.Context, path string, body, v any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return a.send(ctx, http.MethodPost, path, text, v)
}

func (a *AdminClient) send(ctx context.Context, method, path string, body []byte, v any) error {
	if a.Node != "" {
		path = adminapi.NodePath(a.Node, path)
	}
	socket, err := adminapi.FindSocket(a.DataDir)
	if err != nil {
		return err
	}
	transport := &http.Transport{MaxResponseHeaderBytes: rest.MaxHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialUnix(ctx, socket) }}
	defer transport.CloseIdleConnections()
	ctx, sent := traceSent(ctx)
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport, CheckRedirect: NoRedirect}).Do(req)
	if err != nil {
		return a.unanswered(method, socket, sent.Load(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return a.unanswered(method, socket, sent.Load(), err)
	case resp.StatusCode != http.StatusOK:
		return fault.Unmarshal(answer)
	}
	if err := json.Unmarshal(answer, v); err != nil {
		return &fault.Error{Code: fault.Internal, Op: "cli.admin", Msg: "the response of the node cannot be decoded",
			Hint: "use the same quorate version as the node", Err: err}
	}
	return nil
}

// Stream sends a request and calls receive with the response. If the status is not 200, it returns the error of the
// node instead. Both bodies may be large, because Stream does not buffer them. It always uses the node of the data
// directory, even if Node is set. It has no time limit except that of ctx.
func (a *AdminClient) Stream(ctx context.Context, method, path string, body io.Reader,
	receive func(*http.Response) error) error {
	socket, err := adminapi.FindSocket(a.DataDir)
	if err != nil {
		return err
	}
	transport := &http.Transport{MaxResponseHeaderBytes: rest.MaxHeader,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	defer transport.CloseIdleConnections()
	ctx, sent := traceSent(ctx)
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, body)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", adminapi.BackupType) // other requests ignore it
	}
	resp, err := (&http.Client{Transport: transport, CheckRedirect: NoRedirect}).Do(req)
	if err != nil {
		return a.unanswered(method, socket, sent.Load(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return receive(resp)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return a.unanswered(method, socket, sent.Load(), err)
	}
	err = fault.Unmarshal(text)
	if e, ok := fault.As(err); ok && resp.StatusCode == http.StatusNotFound && e.Op == adminapi.OpUnknown {
		return &fault.Error{Code: fault.Unimplemented, Op: "cli.admin",
			Msg:  "the node runs an earlier version, which does not know this command",
			Hint: "use the quorate program that the node was started with"}
	}
	return err
}

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

// unanswered returns the error for a request that got no response:
//
//   - If the request changes something and may have been sent, the error is fault.Indeterminate, because the node may
//     have made the change.
//   - If the socket belongs to another user, the error is fault.Denied.
//   - In all other cases, the error is fault.Unavailable.
func (a *AdminClient) unanswered(method, socket string, sent bool, err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: "cli.admin", Msg: "the node on " + a.DataDir + " does not answer",
		Err: RootCause(err)}
	switch {
	case method != http.MethodGet && sent:
		e.Code = fault.Indeterminate
		e.Msg = "the connection to the node on " + a.DataDir + " ended before its answer; the change may have been made"
		e.Hint = "check whether the change was made before you run the command again"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		e.Msg, e.Err, e.Hint = "no node runs on "+a.DataDir, nil,
			"start one with: quorate run; or choose another with --data-dir or --cluster"
		if pid, held := datadir.Holder(a.DataDir); held {
			e.Msg, e.Hint = "the node on "+a.DataDir+" is starting or stopping (process "+pid+")",
				"try again in a moment; its log says what it waits for"
		}
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Msg, e.Err, e.Hint = fault.Denied, "the admin socket "+socket+" belongs to another user", nil,
			"run the command as the user of the node"
	}
	return e
}

// ErrEnough ends Lines without an error. The function that gets the lines returns it if it needs no further lines.
var ErrEnough = errors.New("enough")

// Lines sends a request whose response is a stream of JSON values, and calls take with each value. It returns nil at
// the end of the stream. It stops earlier in these cases:
//
//   - take returns an error. Lines returns this error, or nil for ErrEnough.
//   - A value contains an error of the node, which the function failure extracts. Lines returns the error of the node.
//   - The connection is lost. Lines returns fault.Unavailable for a GET request, and otherwise fault.Indeterminate.
//
// Lines has no time limit except that of ctx.
func Lines[T any](ctx context.Context, a *AdminClient, method, path string, body any,
	failure func(*T) json.RawMessage, take func(*T) error) error {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(text)
	}
	return a.Stream(ctx, method, path, sent, func(resp *http.Response) error {
		for lines := json.NewDecoder(resp.Body); ; {
			var line T
			err := lines.Decode(&line)
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				e := &fault.Error{Code: fault.Unavailable, Op: "cli.admin", Msg: "the connection to the node ended",
					Hint: "run the command again: it continues", Err: err}
				if method != http.MethodGet {
					e.Code = fault.Indeterminate
				}
				return e
			case failure(&line) != nil:
				return fault.Unmarshal(failure(&line))
			}
			if err = take(&line); errors.Is(err, ErrEnough) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
}
