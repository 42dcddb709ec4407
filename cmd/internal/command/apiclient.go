package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/cmd/internal/settings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/internal/suggest"
	"github.com/quorate/quorate/node"
)

// completionTime is how long the shell waits for the names of stores.
const completionTime = 300 * time.Millisecond

// maxIdle is how many idle connections to the API a command keeps open.
const maxIdle = 64

// MaxAnswer is the maximum size of the answer of a called application, in bytes.
const MaxAnswer = 64 << 20

// APIFlags are the flags that locate the API.
type APIFlags struct {
	Shell   *Shell
	set     *settings.Set
	address string
	Timeout time.Duration
	// Default is the address of the API if neither a flag nor the environment names one; "" = the default port.
	Default string
}

func (f *APIFlags) Bind(c *cobra.Command) {
	f.set = settings.New()
	f.set.BindOnly(c.Flags(), "http-port", "api-token-file", "config-file")
	c.Flags().StringVar(&f.address, "address", "",
		"`address` of the API, for example 127.0.0.1:3500, or a URL; overrides --http-port")
	c.Flags().DurationVar(&f.Timeout, "timeout", 15*time.Second, "timeout of a request")
	c.ValidArgsFunction = f.completeStore
}

// With calls the given function with a client of the API. The flags and the environment determine the address and the
// token of the API.
func (f *APIFlags) With(c *cobra.Command, use func(*APIClient) error) error {
	config, err := f.Shell.Resolve(f.set, c.Flags(), nil)
	if err != nil {
		return err
	}
	// With does not use http.DefaultTransport, because that would keep the connections.
	transport := &http.Transport{ExpectContinueTimeout: f.Timeout, MaxIdleConnsPerHost: maxIdle,
		MaxResponseHeaderBytes: rest.MaxHeader}
	defer transport.CloseIdleConnections()
	client := &APIClient{Base: f.base(&config),
		Http: &http.Client{Transport: transport, Timeout: f.Timeout, CheckRedirect: NoRedirect}}
	if path, ok := strings.CutPrefix(client.Base, "http://unix:"); ok {
		client.UseSocket(path)
	}
	if tokens := config.Security.APITokens; len(tokens) > 0 {
		client.Token = string(tokens[0])
	}
	err = use(client)
	if fault.Is(err, fault.NotFound) && fault.HintOf(err) == "" {
		return client.suggestStore(c.Context(), err)
	}
	return err
}

// suggestStore adds a hint to an error about a state store that does not exist. The hint is a store with a similar
// name. If no name is similar, the hint lists the stores of the application. Other errors are returned unchanged.
func (c *APIClient) suggestStore(ctx context.Context, err error) error {
	const before, after = "state store ", " is not found" // the text of Dapr
	var e *fault.Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Msg, before) || !strings.HasSuffix(e.Msg, after) {
		return err
	}
	app, stores, failed := c.About(ctx)
	name := strings.TrimSuffix(strings.TrimPrefix(e.Msg, before), after)
	switch near := suggest.For(name, stores); {
	case failed != nil:
	case near != "":
		e.Hint = "did you mean " + near + "?"
	case len(stores) > 0:
		e.Hint = "application " + app + " has the stores " + strings.Join(stores, ", ")
	default:
		e.Hint = "application " + app + " may use no state store; quorate stores lists those of the node"
	}
	return err
}

// Settings returns the settings that the flags set. Call it only after Bind.
func (f *APIFlags) Settings() *settings.Set { return f.set }

// base returns the base URL of the HTTP API. For a Unix socket, this is "http://unix:" followed by the path of the
// socket. The address is the first of these that is set:
//
//   - the flag --address
//   - the setting http-port, with listen-address
//   - DAPR_HTTP_ENDPOINT
//   - DAPR_HTTP_PORT
//   - the field Default
//   - the socket in the directory unix-domain-socket
//   - the default of http-port, with listen-address
func (f *APIFlags) base(config *node.Config) string {
	host, address := config.API.Listen[0], f.address
	if address == "" && f.set.Named("http-port").Source().Kind == "default" {
		if address = f.Shell.Getenv("DAPR_HTTP_ENDPOINT"); address == "" {
			if p := f.Shell.Getenv("DAPR_HTTP_PORT"); p != "" {
				address = net.JoinHostPort(host, p)
			}
		}
		if address = cmp.Or(address, f.Default); address == "" && config.API.SocketDir != "" {
			address = "unix:" + filepath.Join(config.API.SocketDir, "dapr-"+config.App.ID+"-http.socket")
		}
	}
	if address == "" {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		address = net.JoinHostPort(host, strconv.Itoa(config.API.HTTP.Number))
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return strings.TrimRight(address, "/")
}

// completeStore completes the first argument with the names of the node's stores. If the node does not answer, there
// are no completions.
func (f *APIFlags) completeStore(c *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTime)
	defer cancel()
	var names []string
	_ = f.With(c, func(client *APIClient) (err error) { // an error must not print while the user types
		names, err = client.stores(ctx)
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// APIClient uses the HTTP API of a node, as its application does.
type APIClient struct {
	Base  string // for example http://127.0.0.1:3500
	Token string // empty = none
	Http  *http.Client
}

// stores returns the names of the state stores that the application may use.
func (c *APIClient) stores(ctx context.Context) ([]string, error) {
	_, names, err := c.About(ctx)
	return names, err
}

// About returns the id of the application that the API belongs to, and the names of its state stores.
func (c *APIClient) About(ctx context.Context) (app string, stores []string, err error) {
	r, err := c.Do(ctx, http.MethodGet, "/v1.0/metadata", nil, nil, nil)
	if err != nil {
		return "", nil, err
	}
	var body struct {
		ID         string                        `json:"id"`
		Components []struct{ Name, Type string } `json:"components"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return "", nil, Unreadable(c.Base, err)
	}
	for _, comp := range body.Components {
		if strings.HasPrefix(comp.Type, "state.") {
			stores = append(stores, comp.Name)
		}
	}
	return body.ID, stores, nil
}

// response is a successful response.
type response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do sends a request and returns the response. A status of 300 or more is an error. For a request that changes
// something, use Change, whose error says whether the change may have been made.
func (c *APIClient) Do(ctx context.Context, method, path string, q url.Values, h http.Header,
	body []byte) (response, error) {
	r, _, err := c.exchange(ctx, method, path, q, h, body)
	return r, err
}

// Change works like Do, for a request that changes something. If the answer is lost, Change returns
// fault.Indeterminate, because the change may have been made.
func (c *APIClient) Change(ctx context.Context, method, path string, q url.Values, h http.Header,
	body []byte) (response, error) {
	r, lost, err := c.exchange(ctx, method, path, q, h, body)
	if lost {
		return r, unknownChange(c.Base, err)
	}
	return r, err
}

// exchange sends a request and returns the response. lost is true if the request may have been sent, but no complete
// answer was received.
func (c *APIClient) exchange(ctx context.Context, method, path string, q url.Values, h http.Header,
	body []byte) (r response, lost bool, err error) {
	address := c.Base + path
	if len(q) > 0 {
		address += "?" + q.Encode()
	}
	ctx, sent := traceSent(ctx)
	req, err := c.request(ctx, method, address, h, body)
	if err != nil {
		return response{}, false, err
	}
	resp, err := c.Http.Do(req)
	if err != nil {
		return response{}, sent.Load(), Unreachable(c.Base, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{}, true, Unreadable(c.Base, err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return response{}, false, Refusal(resp.StatusCode, text)
	}
	return response{resp.StatusCode, resp.Header, text}, false, nil
}

// traceSent returns a context for one request. After the request, sent is true if the client had a connection to the
// server. If sent is false, the server has not received the request.
func traceSent(ctx context.Context) (traced context.Context, sent *atomic.Bool) {
	sent = new(atomic.Bool)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}), sent
}

// unknownChange returns fault.Indeterminate for a change whose answer was lost because of err.
func unknownChange(base string, err error) error {
	return &fault.Error{Code: fault.Indeterminate, Op: "cli.state", Err: err,
		Msg:  "the answer of " + base + " was lost; the change may have been made",
		Hint: "check whether the change was made before you run the command again"}
}

func (c *APIClient) request(ctx context.Context, method, address string, h http.Header,
	body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, Usagef("%q is not the address of an API (write it as 127.0.0.1:3500 or "+
			"http://127.0.0.1:3500)", c.Base)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range h {
		req.Header[name] = values
	}
	if c.Token != "" {
		req.Header.Set("dapr-api-token", c.Token)
	}
	return req, nil
}

// UseSocket makes the client use the API on a Unix socket.
func (c *APIClient) UseSocket(path string) {
	c.Base = "http://unix"
	c.Http.Transport = &http.Transport{MaxResponseHeaderBytes: rest.MaxHeader, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialUnix(ctx, path) }}
}

// NoRedirect is a CheckRedirect function for an http.Client. The client then returns a redirect as the response,
// instead of following it. A redirect may come from an application that is called through the API. Following it would
// send the API token to an address that the application chooses.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Call sends a request and returns the status and the body of the response, even if the status is an error. If the body
// has more than limit bytes, Call returns fault.TooLarge. If the response is lost and the method is not GET, Call
// returns fault.Indeterminate.
func (c *APIClient) Call(ctx context.Context, method, path string, h http.Header, body []byte,
	limit int64) (status int, text []byte, err error) {
	ctx, sent := traceSent(ctx)
	req, err := c.request(ctx, method, c.Base+path, h, body)
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.Http.Do(req)
	switch {
	case err != nil && method != http.MethodGet && sent.Load():
		return 0, nil, unknownChange(c.Base, RootCause(err))
	case err != nil:
		return 0, nil, Unreachable(c.Base, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil && method != http.MethodGet:
		return 0, nil, unknownChange(c.Base, err)
	case err != nil:
		return 0, nil, Unreadable(c.Base, err)
	case int64(len(text)) > limit:
		return 0, nil, fault.New(fault.TooLarge, "cli.invoke", "the answer has more than "+BytesText(limit))
	}
	return resp.StatusCode, text, nil
}

// IsRefusal reports whether text is an error of the API, not an answer of an application.
func IsRefusal(text []byte) bool {
	var e struct{ ErrorCode, Message string }
	return json.Unmarshal(text, &e) == nil && strings.HasPrefix(e.ErrorCode, "ERR_") && e.Message != ""
}

// Refusal converts an error response of the API into an error.
func Refusal(status int, body []byte) error {
	var e struct {
		ErrorCode, Message string
		Details            json.RawMessage
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Message == "" {
		e.Message = fmt.Sprintf("the server is not a Quorate API: status %d", status)
	}
	out := &fault.Error{Code: fault.Internal, Op: "cli.state", Msg: e.Message}
	if e.ErrorCode == api.CodeStoreNotFound {
		out.Code = fault.NotFound
		return out
	}
	var details []struct{ Reason string }
	_ = json.Unmarshal(e.Details, &details) // not every error has details, and other servers send other ones
	for _, d := range details {             // the status of a conflict in a transaction is 500, as in Dapr
		switch d.Reason {
		case api.ReasonConflict:
			out.Code = fault.Conflict
			return out
		case api.ReasonIndeterminate, api.ReasonBadAnswer:
			out.Code = fault.Indeterminate
			return out
		}
	}
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		out.Code, out.Msg = fault.TooLarge, "the request is too long for its headers: status 431"
		out.Hint = "use a shorter name or prefix, or start the node with a larger --read-buffer-size"
	case http.StatusConflict:
		out.Code = fault.Conflict
	case http.StatusUnauthorized:
		out.Code, out.Hint = fault.Denied, "put the token into DAPR_API_TOKEN, or name its file with --api-token-file"
	case http.StatusForbidden:
		out.Code = fault.Denied
	case http.StatusBadRequest:
		out.Code = fault.Invalid
	}
	return out
}

// CallRefusal converts the error response of a call to an application into an error. If text is an error of the API,
// the node refused the call, and the result is Refusal(status, text). Otherwise the application answered, and the error
// contains its name and the status, but not the text.
func CallRefusal(app string, status int, text []byte) error {
	if IsRefusal(text) {
		return Refusal(status, text)
	}
	return fault.New(fault.Internal, "cli.invoke",
		fmt.Sprintf("application %s answered with status %d", Printable(app), status))
}

func Unreachable(base string, err error) error {
	e := &fault.Error{Code: fault.Unavailable, Op: "cli.state", Msg: "no answer from " + base, Err: RootCause(err)}
	if errors.Is(err, syscall.ECONNREFUSED) {
		e.Msg, e.Err = "no node listens at "+base, nil
		e.Hint = "start one with: quorate run; or give its address with --http-port or --address"
	}
	return e
}

// RootCause returns the cause of a failed HTTP request. It removes the url.Error from err, because its text repeats the
// method and the URL. If err contains no url.Error, RootCause returns err.
func RootCause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

func Unreadable(base string, err error) error {
	return &fault.Error{Code: fault.Internal, Op: "cli.state", Msg: "the answer of " + base + " cannot be read",
		Err: err}
}

// RootPath returns the cause of a failed file operation. It removes the fs.PathError from err, because its text repeats
// the path. Use it for messages that already contain the path. If err contains no fs.PathError, RootPath returns err.
func RootPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
