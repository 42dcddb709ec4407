package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

const (
	keysOfPage = 50
	maxShown   = 64 << 10 // bytes of a value that are shown and can be edited
)

// choice has the parameters of the state page.
type choice struct{ app, store, prefix, token, key, consistency string }

func (r *request) choice() choice {
	q := r.URL.Query()
	c := choice{q.Get("app"), q.Get("store"), q.Get("prefix"), q.Get("token"), q.Get("key"), q.Get("consistency")}
	if apps := r.apps(); c.app == "" && len(apps) > 0 {
		c.app = apps[0]
	}
	if stores := r.console.config.Data.Stores(c.app); c.store == "" && len(stores) > 0 {
		c.store = stores[0]
	}
	return c
}

// link returns the address of the state page with the given key and page token.
func (c choice) link(key, token string) string {
	q := url.Values{}
	for _, one := range [...][2]string{{"app", c.app}, {"store", c.store}, {"prefix", c.prefix}, {"token", token},
		{"key", key}, {"consistency", c.consistency}} {
		if one[1] != "" {
			q.Set(one[0], one[1])
		}
	}
	return "/state?" + q.Encode()
}

func (c choice) options() api.ReadOptions {
	o := api.ReadOptions{Consistency: state.Eventual, MaxValue: maxShown}
	if c.consistency == "strong" {
		o.Consistency = state.Strong
	}
	return o
}

// apps returns the ids of the applications of the cluster, those of this node first.
func (r *request) apps() []string {
	var own, other []string
	if v := r.snap.self(); v != nil {
		for _, a := range v.Status.Node.Apps {
			own = append(own, a.ID)
		}
	}
	for _, i := range r.snap.instances() {
		if !slices.Contains(own, i.App) {
			other = append(other, i.App)
		}
	}
	slices.Sort(other)
	return append(own, slices.Compact(other)...)
}

// stateBody renders the page that browses the keys of an application.
func stateBody(r *request) (html, error) {
	c := r.choice()
	body := r.chooser(c)
	if c.store == "" {
		return body + card("none", "No state store", h("<p>The application % sees no state store on this node.</p>",
			esc(c.app))), nil
	}
	if c.key != "" {
		body += r.value(c)
	}
	body += r.keys(c)
	if r.console.config.Write && c.key == "" {
		body += card("new", "New key", h("<details><summary>Add a key</summary>%</details>",
			r.editor(c, state.Item{}, "")))
	}
	return body, nil
}

// chooser renders the form that chooses the application, the store and the prefix.
func (r *request) chooser(c choice) html {
	stores := r.console.config.Data.Stores(c.app)
	if c.store != "" && !slices.Contains(stores, c.store) {
		stores = append(stores, c.store)
	}
	var apps []html
	for _, a := range r.apps() {
		apps = append(apps, h(`<option value="%">`, esc(a)))
	}
	return card("choose", "Keys of an application", h(`<form class="inline" method="get" action="/state">%`+
		`<datalist id="apps">%</datalist>%%%<button>Show</button></form>`,
		label("Application", "app", c.app, ` list="apps" required`), joined(apps),
		choose("Store", "store", c.store, stores), label("Prefix", "prefix", c.prefix, ""),
		choose("Read", "consistency", c.consistency, []string{"eventual", "strong"})))
}

// keys renders one page of the keys.
func (r *request) keys(c choice) html {
	page, err := r.console.config.Data.State(c.app).List(r.Context(), api.ListRequest{Store: c.store, Prefix: c.prefix,
		Limit: keysOfPage, Token: c.token, ReadOptions: c.options()})
	if err != nil {
		return card("keys", "Keys", failure(textOf(err)))
	}
	var rows []html
	for _, i := range page.Items {
		rows = append(rows, row(h(`<a href="%">%</a>`, esc(c.link(i.Key, c.token)), code(i.Key)), text(i.ETag),
			text(moment(i.Expires, r.console.config.Now()))))
	}
	var turn html
	if c.token != "" {
		turn = h(`<a class="button" href="%">First page</a> `, esc(c.link("", "")))
	}
	if page.Token != "" {
		turn += h(`<a class="button" href="%">Next page</a>`, esc(c.link("", page.Token)))
	}
	return card("keys", "Keys", grid("Keys", "Key|ETag|Expires", rows)+dim("Answered with "+proof(page.Proof)+".")+turn)
}

// proof describes the consistency of an answer.
func proof(p state.Proof) string {
	if p.Level == "" {
		return "the consistency of the store"
	}
	out := string(p.Level) + " consistency"
	switch {
	case p.Age >= time.Second:
		out += ", at most " + age(p.Age) + " old"
	case p.Age > 0:
		out += ", less than a second old"
	}
	return out
}

// value renders the value of one key. It writes an audit log line for the read.
func (r *request) value(c choice) html {
	item, err := r.console.config.Data.State(c.app).Get(r.Context(), api.GetRequest{Store: c.store, Key: c.key,
		ReadOptions: c.options()})
	r.audit(r.Context(), "read value", "app", c.app, "store", c.store, "key", c.key, "error", textOrEmpty(err))
	title := "Value of " + c.key
	if err != nil {
		return card("value", title, failure(textOf(err)))
	}
	if !item.Found() {
		return card("value", title, `<p class="empty">There is no such key.</p>`)
	}
	shown, note := pretty(item)
	body := pairs(pair("ETag", item.ETag), pair("Expires", moment(item.Expires, r.console.config.Now())),
		pair("Content type", contentType(item)), pair("Size", size(float64(max(item.Size, int64(len(item.Value)))))),
		pair("Answered with", proof(item.Proof))) +
		h(`<pre class="value" tabindex="0"><code>%</code></pre>`, esc(shown))
	if note != "" {
		body += dim(note)
	}
	if r.console.config.Write {
		body += r.change(c, item, shown)
	}
	return card("value", title, body)
}

func contentType(i state.Item) string {
	if i.ContentType == "" {
		return "application/json"
	}
	return i.ContentType
}

// pretty formats a value for people. It indents JSON, keeps other text as it is, and shows binary data in hexadecimal.
// It returns only the first part of a long value, and nothing of a value that was too large to read. In both cases,
// note explains what is missing.
func pretty(i state.Item) (shown, note string) {
	if i.Size > int64(len(i.Value)) {
		return "", "The value has " + size(float64(i.Size)) + ", too much to show. Read it with: quorate state get"
	}
	v := i.Value
	if len(v) > maxShown {
		end := maxShown
		for end > maxShown-utf8.UTFMax && !utf8.RuneStart(v[end]) {
			end-- // no part of a character is shown
		}
		v, note = v[:end], "Only the first "+size(maxShown)+" are shown."
	}
	if note == "" {
		if text, ok := indented(v); ok {
			return text, ""
		}
	}
	if utf8.Valid(v) {
		return string(v), note
	}
	return hex.Dump(v[:min(len(v), 4<<10)]), "Binary: the first bytes are shown."
}

// maxNesting is the maximum nesting depth of JSON that the console indents. With deeper JSON, each line would begin
// with so many spaces that 64 KiB of JSON could grow to hundreds of megabytes.
const maxNesting = 32

// indented returns JSON with indented lines. It returns false if v is not JSON or is nested too deeply.
func indented(v []byte) (string, bool) {
	depth, quoted := 0, false
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return "", false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	var b bytes.Buffer
	if json.Indent(&b, v, "", "  ") != nil {
		return "", false
	}
	return b.String(), true
}

// change renders a form that deletes the value of item. For JSON without a content type, it also renders a form that
// replaces the value. Submitting a form fails if the ETag of the value has changed meanwhile.
func (r *request) change(c choice, item state.Item, shown string) html {
	deletion := h(`<form class="inline" method="post" action="/state/delete">%%<button class="danger" `+
		`data-confirm="%">Delete</button></form>`, r.csrf(), formTarget(c, item), esc("Delete "+c.key+"?"))
	if item.ContentType != "" || !json.Valid(item.Value) {
		return dim("Only JSON values can be edited here.") + deletion
	}
	return h("<details><summary>Edit</summary>%</details>", r.editor(c, item, shown)) + deletion
}

// formTarget returns the hidden fields of a form that identify an item. The fields contain the application, the store,
// the prefix, the ETag and, if c has one, the key.
func formTarget(c choice, item state.Item) html {
	fields := hidden("app", c.app) + hidden("store", c.store) + hidden("prefix", c.prefix) + hidden("etag", item.ETag)
	if c.key != "" {
		fields += hidden("key", c.key)
	}
	return fields
}

// editor renders the form that saves a value. If c has no key, the form also has a field for the key of a new item.
// Saving a new item fails if the key exists already.
func (r *request) editor(c choice, item state.Item, shown string) html {
	ttl := ""
	if !item.Expires.IsZero() {
		ttl = strconv.Itoa(max(1, int(math.Ceil(item.Expires.Sub(r.console.config.Now()).Seconds()))))
	}
	return h(`<form class="editor" method="post" action="/state/save">%%%%%<button>Save</button></form>`, r.csrf(),
		formTarget(c, item), when(c.key == "", label("Key", "key", "", " required")),
		area("Value (JSON)", shown, "", " required"),
		label("Seconds until it expires (empty = the default of the store)", "ttl", ttl, ` type="number" min="1"`))
}

// saveState handles the form of editor.
func (r *request) saveState() error {
	f := r.PostForm
	c := choice{app: f.Get("app"), store: f.Get("store"), prefix: f.Get("prefix"), key: f.Get("key")}
	value := strings.ReplaceAll(f.Get("value"), "\r\n", "\n")
	if !json.Valid([]byte(value)) {
		return &fault.Error{Code: fault.Invalid, Op: "console", Msg: "the value is not JSON",
			Hint: "put text into double quotes"}
	}
	item := api.Item{Key: c.key, Value: []byte(value), JSON: true, ETag: f.Get("etag"), Concurrency: state.FirstWrite,
		Consistency: state.Strong}
	if ttl := f.Get("ttl"); ttl != "" {
		item.Metadata = map[string]string{"ttlInSeconds": ttl}
	}
	_, err := r.console.config.Data.State(c.app).Save(r.Context(), api.SaveRequest{Store: c.store,
		Items: []api.Item{item}})
	r.audit(r.Context(), "save value", "app", c.app, "store", c.store, "key", c.key, "error", textOrEmpty(err))
	if err != nil {
		return err
	}
	c.consistency = "strong" // this node may not have applied the write yet
	http.Redirect(r.w, r.Request, c.link(c.key, ""), http.StatusSeeOther)
	return nil
}

// deleteState handles the form that deletes a key.
func (r *request) deleteState() error {
	f := r.PostForm
	c := choice{app: f.Get("app"), store: f.Get("store"), prefix: f.Get("prefix"), key: f.Get("key")}
	_, err := r.console.config.Data.State(c.app).Delete(r.Context(), api.DeleteRequest{Store: c.store, Key: c.key,
		ETag: f.Get("etag"), Concurrency: state.FirstWrite, Consistency: state.Strong})
	r.audit(r.Context(), "delete key", "app", c.app, "store", c.store, "key", c.key, "error", textOrEmpty(err))
	if err != nil {
		return err
	}
	http.Redirect(r.w, r.Request, c.link("", ""), http.StatusSeeOther)
	return nil
}
