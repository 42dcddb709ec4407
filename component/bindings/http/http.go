// Package http implements the output binding bindings.http, which calls an external HTTP server.
//
// The package maps operations to HTTP methods, and metadata to the path and the headers of the request. It limits the
// size of responses. It starts no goroutines of its own.
package http

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/internal/userfile"
)

// Type is the component type.
const Type = "bindings.http"

// The metadata names.
const (
	metadataURL         = "url"
	metadataMaxBody     = "maxResponseBodySize"
	metadataTimeout     = "responseTimeout"
	metadataOnly2XX     = "errorIfNot2XX"
	metadataRootCA      = "MTLSRootCA"
	metadataClientCert  = "MTLSClientCert"
	metadataClientKey   = "MTLSClientKey"
	metadataToken       = "securityToken"
	metadataTokenHeader = "securityTokenHeader"
	requestPath         = "path"
)

// DefaultTimeout is the timeout of one call if the component sets none.
const DefaultTimeout = 30 * time.Second

// Fields declares the metadata.
func Fields() []component.Field {
	return []component.Field{
		{Name: metadataURL, Required: true, Check: func(text string) error { _, err := base(text); return err }},
		{Name: metadataTimeout, Kind: component.Duration, Default: DefaultTimeout.String()},
		{Name: metadataMaxBody, Kind: component.Size, Default: "100Mi"},
		{Name: metadataOnly2XX, Kind: component.Bool, Default: "true"},
		{Name: metadataRootCA, Security: true},
		{Name: metadataClientCert, Security: true},
		{Name: metadataClientKey, Secret: true, Security: true},
		{Name: metadataToken, Secret: true, Security: true},
		{Name: metadataTokenHeader, Security: true, Check: headerName},
	}
}

func base(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fault.New(fault.Invalid, "http.Open", "is not an address such as https://partner.example/v1")
	}
	return u, nil
}

func headerName(text string) error {
	for _, r := range text {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_' {
			return errors.New("is not the name of a header")
		}
	}
	return nil
}

// Options are the settings of a binding.
type Options struct {
	Metadata component.Values
	Logger   *slog.Logger
}

// Open checks the options and reads certificates. It does not connect.
func Open(o Options) (bindings.Binding, error) {
	m := o.Metadata
	target, err := base(m.Text(metadataURL))
	if err != nil {
		return bindings.Binding{}, err
	}
	if (m.Text(metadataToken) == "") != (m.Text(metadataTokenHeader) == "") {
		return bindings.Binding{}, &fault.Error{Code: fault.Invalid, Op: "http.Open",
			Msg:  "only one of " + metadataToken + " and " + metadataTokenHeader + " is given",
			Hint: "give both, or none"}
	}
	if !httpguts.ValidHeaderFieldValue(m.Text(metadataToken)) {
		return bindings.Binding{}, &fault.Error{Code: fault.Invalid, Op: "http.Open",
			Msg:  metadataToken + " has a character that a header cannot have",
			Hint: "remove line breaks and other control characters from the secret"}
	}
	secured, err := tlsConfig(m)
	if err != nil {
		return bindings.Binding{}, err
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: secured, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: 32, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: rest.MaxHeader,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
	}
	out := &output{
		target: target, client: &http.Client{Transport: transport, CheckRedirect: sameHost},
		timeout: cmp.Or(m.Duration(metadataTimeout), DefaultTimeout),
		limit:   min(m.Int(metadataMaxBody), math.MaxInt64-1), only2XX: m.Bool(metadataOnly2XX),
		token: m.Text(metadataToken), tokenHeader: m.Text(metadataTokenHeader),
	}
	closeIdle := func(context.Context) error { transport.CloseIdleConnections(); return nil }
	return bindings.Binding{Output: out, Close: closeIdle}, nil
}

// sameHost is the redirect policy. It allows up to nine redirects, and only to the same scheme and host, because
// headers may contain a token. If a redirect is not allowed, net/http returns the redirect response itself.
func sameHost(request *http.Request, via []*http.Request) error {
	if len(via) >= 10 || request.URL.Host != via[0].URL.Host || request.URL.Scheme != via[0].URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// tlsConfig reads the certificates, each given as PEM text or as the name of a file.
func tlsConfig(m component.Values) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if root := m.Text(metadataRootCA); root != "" {
		pem, err := pemOf(metadataRootCA, root)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.New(fault.Invalid, "http.Open", metadataRootCA+" holds no certificate in PEM form")
		}
	}
	cert, key := m.Text(metadataClientCert), m.Text(metadataClientKey)
	switch {
	case cert == "" && key == "":
		return c, nil
	case cert == "" || key == "":
		return nil, &fault.Error{Code: fault.Invalid, Op: "http.Open",
			Msg:  "only one of " + metadataClientCert + " and " + metadataClientKey + " is given",
			Hint: "give both, or none"}
	}
	certPEM, err := pemOf(metadataClientCert, cert)
	if err != nil {
		return nil, err
	}
	keyPEM, err := pemOf(metadataClientKey, key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil { // dropped, because its text may hold a part of the key file
		return nil, fault.New(fault.Invalid, "http.Open",
			metadataClientCert+" and "+metadataClientKey+" are not a certificate and its key in PEM form")
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

func pemOf(name, text string) ([]byte, error) {
	if strings.Contains(text, "-----BEGIN") {
		return []byte(text), nil
	}
	pem, err := userfile.Read(text)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "http.Open",
			Msg:  name + " is neither PEM text nor a readable file",
			Hint: "give the PEM text, beginning with -----BEGIN, or a path"}
	}
	return pem, nil
}

// output calls one URL. It is immutable and safe for concurrent use.
type output struct {
	target             *url.URL
	client             *http.Client
	timeout            time.Duration
	limit              int64
	only2XX            bool
	token, tokenHeader string
}

// Operations lists "create", which means POST, and the HTTP methods.
func (o *output) Operations() []string {
	return []string{"create", "get", "head", "post", "put", "patch", "delete", "options", "trace"}
}

// Invoke makes one HTTP call. The metadata of the request have these meanings:
//   - "path" is appended to the component's URL.
//   - "errorIfNot2XX" overrides the setting of the component.
//   - "traceparent", "tracestate" and "baggage" are sent as headers.
//   - Any other name that begins with a capital letter is also sent as a header.
//
// The metadata of the response are the status code, the status text and the headers.
func (o *output) Invoke(ctx context.Context, r bindings.Request) (*bindings.Response, error) {
	only2XX, err := o.wants2XX(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := o.request(ctx, r)
	if err != nil {
		return nil, err
	}
	response, err := o.client.Do(request)
	if err != nil {
		return nil, o.unanswered(ctx, err, connected.Load())
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, o.limit+1))
	switch {
	case err != nil:
		return nil, o.unanswered(ctx, err, connected.Load())
	case int64(len(body)) > o.limit:
		return nil, &fault.Error{Code: fault.Indeterminate, Op: "http.Invoke",
			Msg:  "the answer has more than " + strconv.FormatInt(o.limit, 10) + " bytes",
			Hint: "raise " + metadataMaxBody + "; the server may have processed the request"}
	}
	return answer(response, body, only2XX)
}

// wants2XX reports whether a status other than 2xx is an error.
func (o *output) wants2XX(r bindings.Request) (bool, error) {
	text, given := r.Metadata[metadataOnly2XX]
	if !given {
		return o.only2XX, nil
	}
	only2XX, err := component.ParseBool(text)
	if err != nil {
		return false, &fault.Error{Code: fault.Invalid, Op: "http.Invoke",
			Msg:  "the metadata " + metadataOnly2XX + " is neither true nor false",
			Hint: `write it as "true" or "false"`}
	}
	return only2XX, nil
}

func (o *output) request(ctx context.Context, r bindings.Request) (*http.Request, error) {
	method := strings.ToUpper(r.Operation)
	if !slices.Contains(o.Operations(), strings.ToLower(r.Operation)) {
		return nil, fault.New(fault.Invalid, "http.Invoke", "operation "+strconv.Quote(r.Operation)+
			" is not supported; supported are "+strings.Join(o.Operations(), ", "))
	}
	if method == "CREATE" {
		method = http.MethodPost
	}
	address, err := o.address(r.Metadata[requestPath])
	if err != nil {
		return nil, err
	}
	var body io.Reader = http.NoBody
	if carries(method) && len(r.Data) > 0 {
		body = bytes.NewReader(r.Data)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, fault.New(fault.Invalid, "http.Invoke", "the metadata "+requestPath+" makes no valid address")
	}
	if body != http.NoBody {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Metadata)) {
		if first, _ := utf8.DecodeRuneInString(name); unicode.IsUpper(first) {
			if err := setHeader(request, name, r.Metadata[name]); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range []string{"traceparent", "tracestate", "baggage"} {
		if v := r.Metadata[name]; v != "" {
			if err := setHeader(request, name, v); err != nil {
				return nil, err
			}
		}
	}
	if o.token != "" {
		request.Header.Set(o.tokenHeader, o.token)
	}
	return request, nil
}

// setHeader sets a header of the request. It returns fault.Invalid if the name or the value is not valid in a header.
// Without this check, net/http would return an error, and the binding would report the server as unreachable.
func setHeader(request *http.Request, name, value string) error {
	if !httpguts.ValidHeaderFieldName(name) {
		return &fault.Error{Code: fault.Invalid, Op: "http.Invoke",
			Msg:  "the metadata " + strconv.Quote(name) + " is not the name of a header",
			Hint: "a name that begins with a capital letter is sent as a header"}
	}
	if !httpguts.ValidHeaderFieldValue(value) {
		return &fault.Error{Code: fault.Invalid, Op: "http.Invoke",
			Msg:  "the metadata " + name + " has a character that a header cannot have",
			Hint: "remove line breaks and other control characters"}
	}
	request.Header.Set(name, value)
	return nil
}

func carries(method string) bool {
	return method != http.MethodGet && method != http.MethodHead &&
		method != http.MethodOptions && method != http.MethodTrace
}

// address returns the component's URL with the given path appended. A query in the path replaces the query of the
// component's URL. The result always has the component's host, and its path begins with the component's path.
func (o *output) address(path string) (string, error) {
	if path == "" {
		return o.target.String(), nil
	}
	rest, err := url.Parse(path)
	if err != nil || rest.IsAbs() || rest.Host != "" {
		return "", &fault.Error{Code: fault.Invalid, Op: "http.Invoke",
			Msg:  "the metadata " + requestPath + " is not a path",
			Hint: "write it as /orders/1?expand=all; the host is the component's"}
	}
	if err := checkPath(rest.Path); err != nil {
		return "", err
	}
	joined := *o.target
	joined.Path = strings.TrimSuffix(o.target.Path, "/") + "/" + strings.TrimPrefix(rest.Path, "/")
	joined.RawPath = strings.TrimSuffix(o.target.EscapedPath(), "/") + "/" + strings.TrimPrefix(rest.EscapedPath(), "/")
	if rest.RawQuery != "" {
		joined.RawQuery = rest.RawQuery
	}
	return joined.String(), nil
}

// checkPath returns an error if a decoded path could lead a server outside the component's URL. It refuses every
// segment "..", also with parameters as in "..;x". It also refuses backslashes, because some servers treat them as
// slashes.
func checkPath(path string) error {
	if strings.Contains(path, `\`) {
		return &fault.Error{
			Code: fault.Invalid, Op: "http.Invoke", Hint: "separate parts with /",
			Msg: "the metadata " + requestPath + " must not contain a backslash",
		}
	}
	for part := range strings.SplitSeq(path, "/") {
		if bare, _, _ := strings.Cut(part, ";"); bare == ".." {
			return &fault.Error{
				Code: fault.Invalid, Op: "http.Invoke", Hint: "write the path below the address of the component",
				Msg: "the metadata " + requestPath + ` must not contain the part ".."`,
			}
		}
	}
	return nil
}

// answer converts an HTTP response to the response of the binding. If only2XX is true and the status is not 2xx, it
// also returns an error.
//
// For a 503 with the header Retry-After, the error is fault.Unavailable. For any other 5xx status, it is
// fault.Indeterminate, because the server may have processed the request.
//
// Invalid UTF-8 in the status and the headers is replaced, because gRPC cannot send it.
func answer(response *http.Response, body []byte, only2XX bool) (*bindings.Response, error) {
	out := &bindings.Response{Data: body, Metadata: map[string]string{
		"statusCode": strconv.Itoa(response.StatusCode), "status": strings.ToValidUTF8(response.Status, "\uFFFD"),
	}}
	for name, values := range response.Header {
		out.Metadata[name] = strings.ToValidUTF8(strings.Join(values, ", "), "\uFFFD")
	}
	if ok := response.StatusCode >= 200 && response.StatusCode < 300; ok || !only2XX {
		return out, nil
	}
	code := fault.Indeterminate
	switch s := response.StatusCode; {
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		code = fault.Denied
	case s == http.StatusTooManyRequests:
		code = fault.Overloaded
	case s == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "":
		code = fault.Unavailable
	case s < 500:
		code = fault.Invalid
	}
	return out, &fault.Error{Code: code, Op: "http.Invoke",
		Msg:  "received status code " + strconv.Itoa(response.StatusCode),
		Hint: "set " + metadataOnly2XX + ` to "false" to get such an answer without an error`}
}

// unanswered returns the error for a call without a complete response. If the connection was established, the code is
// fault.Indeterminate, because the server may have processed the request. The message leaves out the error text of
// net/http, which could contain headers or the password in the URL.
func (o *output) unanswered(ctx context.Context, err error, connected bool) error {
	out := &fault.Error{Code: fault.Unavailable, Op: "http.Invoke", Msg: o.target.Host + " cannot be reached"}
	switch inner, ok := errors.AsType[*url.Error](err); {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		out.Code = fault.Timeout
		out.Msg = o.target.Host + " did not answer within " + o.timeout.String() + " or the time limit of the request"
	case ctx.Err() != nil:
		out.Code, out.Msg, out.Err = fault.Timeout, "the caller canceled the call", ctx.Err()
	case ok:
		out.Err = inner.Err
	default:
		out.Err = err
	}
	if !connected {
		return out
	}
	if out.Code == fault.Unavailable {
		out.Msg = "the connection to " + o.target.Host + " failed before the end of the answer"
	}
	out.Code, out.Hint = fault.Indeterminate, "the server may have processed the request"
	return out
}
