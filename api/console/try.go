package console

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

const (
	tryTime   = 15 * time.Second
	maxAnswer = 64 << 10 // bytes of an answer that are shown
)

// tryPage returns the page that composes a request to the API, shows it as a command, and sends it.
func tryPage() page { return page{"/try", "Try it", nil, tryBody} }

// attempt has the values of the form that describes the request.
type attempt struct {
	kind, app, store, key, value, etag, target, method, verb string
}

// kinds returns the kinds of requests that the page can compose.
func kinds() []string { return []string{"get", "save", "delete", "transaction", "invoke"} }

func attemptOf(q url.Values) *attempt {
	a := &attempt{q.Get("kind"), q.Get("app"), q.Get("store"), q.Get("key"), q.Get("value"), q.Get("etag"),
		q.Get("target"), q.Get("method"), q.Get("verb")}
	if !slices.Contains(kinds(), a.kind) {
		a.kind = "get"
	}
	return a
}

// tryBody shows the form and, once it is complete, the command and the answer.
func tryBody(r *request) (html, error) {
	if err := r.ParseForm(); err != nil {
		return "", fault.New(fault.Invalid, "console", "the form cannot be read")
	}
	a := attemptOf(r.Form)
	addresses := r.ownAPIs()
	if a.app == "" && len(addresses) > 0 {
		a.app = addresses[0].app
	}
	if stores := r.console.config.Data.Stores(a.app); a.store == "" && len(stores) > 0 {
		a.store = stores[0]
	}
	body := card("compose", "Compose a request", kindLinks(a)+tryForm(a, addresses))
	if !a.complete() {
		return body, nil
	}
	i := slices.IndexFunc(addresses, func(o ownAPI) bool { return o.app == a.app })
	if i < 0 {
		return "", fault.New(fault.NotFound, "console", "this node has no HTTP API of the application "+a.app)
	}
	call, err := a.call(addresses[i].address)
	if err != nil {
		return "", err
	}
	secured := r.token(a.app) != ""
	command := h(`<pre tabindex="0"><code>%</code></pre>`, esc(call.curl(secured)))
	if secured {
		command += dim("DAPR_API_TOKEN is the API token; the console does not show it.")
	}
	body += card("command", "As a command", command+r.runForm(a))
	if r.Method == http.MethodPost {
		body += r.run(a, call)
	}
	return body, nil
}

// ownAPI is the HTTP API of one application of this node.
type ownAPI struct{ app, address string }

func (r *request) ownAPIs() (out []ownAPI) {
	v := r.snap.self()
	if v == nil {
		return nil
	}
	for _, a := range v.Status.Node.Apps {
		for _, at := range a.API {
			if !strings.HasPrefix(at, "unix:") {
				out = append(out, ownAPI{a.ID, reachable(at)})
				break
			}
		}
	}
	return out
}

// reachable replaces the unspecified address, which means all interfaces, by 127.0.0.1.
func reachable(at string) string {
	host, port, err := net.SplitHostPort(at)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return at
}

func (r *request) token(app string) string {
	if r.console.config.Token == nil {
		return ""
	}
	return r.console.config.Token(app)
}

// kindLinks renders the links that choose the kind of the request.
func kindLinks(a *attempt) html {
	var links []html
	for _, k := range kinds() {
		links = append(links, h(`<li><a href="/try?kind=%"%>%</a></li>`, esc(k),
			when(k == a.kind, ` aria-current="true"`), esc(k)))
	}
	return h(`<nav class="tabs" aria-label="Kind of request"><ul>%</ul></nav>`, joined(links))
}

// fields returns the fields that the form has for the kind a.kind, in order. Each element has the name, the label and
// an example of a field.
func (a *attempt) fields() [][3]string {
	store, key := [3]string{"store", "Store", "statestore"}, [3]string{"key", "Key", "order-1"}
	value, etag := [3]string{"value", "Value (JSON)", `{"total": 12}`}, [3]string{"etag", "ETag (empty = any)", ""}
	switch a.kind {
	case "save":
		return [][3]string{store, key, value, etag}
	case "delete":
		return [][3]string{store, key, etag}
	case "transaction":
		return [][3]string{store, {"value", "Operations (JSON)",
			`[{"operation":"upsert","request":{"key":"order-1","value":1}}]`}}
	case "invoke":
		return [][3]string{{"target", "Application", "shop"}, {"method", "Method", "orders/1"}, {"verb", "Verb", "GET"},
			{"value", "Body (JSON, may be empty)", ""}}
	default:
		return [][3]string{store, key}
	}
}

func (a *attempt) get(field string) string {
	switch field {
	case "store":
		return a.store
	case "key":
		return a.key
	case "value":
		return a.value
	case "etag":
		return a.etag
	case "target":
		return a.target
	case "method":
		return a.method
	}
	return a.verb
}

// complete reports whether all required fields are filled in.
func (a *attempt) complete() bool {
	for _, f := range a.fields() {
		optional := f[0] == "etag" || a.kind == "invoke" && (f[0] == "value" || f[0] == "verb")
		if !optional && a.get(f[0]) == "" {
			return false
		}
	}
	return true
}

func tryForm(a *attempt, addresses []ownAPI) html {
	var apps []string
	for _, o := range addresses {
		apps = append(apps, o.app)
	}
	var inputs []html
	for _, f := range a.fields() {
		if f[0] == "value" {
			inputs = append(inputs, area(f[1], a.value, f[2], ""))
			continue
		}
		inputs = append(inputs, label(f[1], f[0], a.get(f[0]), h(` placeholder="%"`, esc(f[2]))))
	}
	return h(`<form class="editor" method="get" action="/try">%%%<button>Show the command</button></form>`,
		hidden("kind", a.kind), choose("As application", "app", a.app, apps), joined(inputs))
}

// runForm renders the button that sends the composed request. In a read-only console, it renders the button only
// for requests of the kind get.
func (r *request) runForm(a *attempt) html {
	if a.kind != "get" && !r.console.config.Write {
		return dim(readOnlyText)
	}
	fields := hidden("kind", a.kind) + hidden("app", a.app)
	for _, f := range a.fields() {
		fields += hidden(f[0], a.get(f[0]))
	}
	return h(`<form method="post" action="/try">%%<button>Run it</button></form>`, r.csrf(), fields)
}

// apiCall is a request to the HTTP API.
type apiCall struct {
	verb, url string
	header    [][2]string
	body      string
}

// call composes the request. It returns fault.Invalid if a value that must be JSON is not JSON.
func (a *attempt) call(address string) (apiCall, error) {
	base := "http://" + address
	state := base + "/v1.0/state/" + url.PathEscape(a.store)
	c := apiCall{verb: http.MethodGet}
	asJSON := func(body any) error {
		text, err := json.Marshal(body)
		c.verb, c.body = http.MethodPost, string(text)
		c.header = append(c.header, [2]string{"Content-Type", "application/json"})
		return err
	}
	invalid := &fault.Error{Code: fault.Invalid, Op: "console", Msg: "the value is not JSON",
		Hint: "put text into double quotes"}
	switch a.kind {
	case "get":
		c.url = state + "/" + url.PathEscape(a.key)
	case "delete":
		c.verb, c.url = http.MethodDelete, state+"/"+url.PathEscape(a.key)
		if a.etag != "" {
			c.header = append(c.header, [2]string{"If-Match", a.etag})
		}
	case "save":
		if !json.Valid([]byte(a.value)) {
			return c, invalid
		}
		item := map[string]any{"key": a.key, "value": json.RawMessage(a.value)}
		if a.etag != "" {
			item["etag"] = a.etag
		}
		c.url = state
		return c, asJSON([]any{item})
	case "transaction":
		if !json.Valid([]byte(a.value)) {
			return c, invalid
		}
		c.url = state + "/transaction"
		return c, asJSON(map[string]any{"operations": json.RawMessage(a.value)})
	case "invoke":
		c.url = base + "/v1.0/invoke/" + url.PathEscape(a.target) + "/method/" + strings.TrimPrefix(a.method, "/")
		if a.verb != "" {
			c.verb = strings.ToUpper(a.verb)
		}
		if a.value != "" {
			c.body, c.header = a.value, [][2]string{{"Content-Type", "application/json"}}
		}
	}
	return c, nil
}

// curl returns the request as a curl command. If secured is true, the command reads the API token from the
// environment variable DAPR_API_TOKEN.
func (c apiCall) curl(secured bool) string {
	var b strings.Builder
	b.WriteString("curl -i")
	if c.verb != http.MethodGet {
		b.WriteString(" -X " + quote(c.verb))
	}
	b.WriteString(" " + quote(c.url))
	if secured {
		b.WriteString(" \\\n  -H \"dapr-api-token: $DAPR_API_TOKEN\"")
	}
	for _, one := range c.header {
		b.WriteString(" \\\n  -H " + quote(one[0]+": "+one[1]))
	}
	if c.body != "" {
		b.WriteString(" \\\n  --data-binary " + quote(c.body))
	}
	return b.String()
}

// quote quotes text for a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// run sends the request and shows the answer.
func (r *request) run(a *attempt, c apiCall) html {
	if a.kind != "get" && !r.console.config.Write {
		return card("answer", "Answer", failure(readOnlyText))
	}
	ctx, cancel := context.WithTimeout(r.Context(), tryTime)
	defer cancel()
	status, header, body, err := c.send(ctx, r.token(a.app))
	r.audit(r.Context(), "send request", "verb", c.verb, "url", c.url, "status", status, "error", textOrEmpty(err))
	if err != nil {
		return card("answer", "Answer", failure(err.Error()))
	}
	if text, ok := indented(body); ok {
		body = []byte(text)
	}
	level := levelOK
	if status[0] != '2' {
		level = levelWarn
	}
	return card("answer", "Answer", h(`<p>%</p><pre class="dim" tabindex="0"><code>%</code></pre>`+
		`<pre class="value" tabindex="0"><code>%</code></pre>`, badge(level, status), esc(header),
		esc(strings.ToValidUTF8(string(body), "�"))))
}

// send sends the request. The answer is cut at maxAnswer.
func (c apiCall) send(ctx context.Context, token string) (status, header string, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, c.verb, c.url, strings.NewReader(c.body))
	if err != nil {
		return "", "", nil, err
	}
	for _, one := range c.header {
		request.Header.Set(one[0], one[1])
	}
	if token != "" {
		request.Header.Set("dapr-api-token", token)
	}
	// Not the default transport: the request must not go through a proxy, and the connection ends with the answer.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: rest.MaxHeader},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request) //nolint:gosec // the host is an API of this node
	if err != nil {
		return "", "", nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	var lines bytes.Buffer
	_ = answer.Header.Write(&lines) // a Buffer never fails
	return answer.Status, strings.ReplaceAll(strings.TrimSpace(lines.String()), "\r\n", "\n"), body, err
}
