package browsertest

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a signed-in Chromium. It records requests to other hosts and errors, which the console must not cause.
type browser struct {
	context.Context
	t    *testing.T
	base string

	mu      sync.Mutex
	foreign []string
	errors  []string
}

// openBrowser starts Chromium and signs in to the console of a node.
func openBrowser(t *testing.T, n *node) *browser {
	t.Helper()
	b := startBrowser(t)
	link := n.link(t)
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	b.base = "http://" + u.Host
	chromedp.ListenTarget(b.Context, b.listen)
	b.run(network.Enable(), log.Enable(), runtime.Enable(), chromedp.Navigate(link), shown())
	return b
}

// startBrowser starts Chromium, with an empty page.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path := os.Getenv("CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path != "" {
			break
		}
		if found, err := exec.LookPath(name); err == nil {
			path = found
		}
	}
	if path == "" {
		t.Skip("Chromium is not installed")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path),
		chromedp.NoSandbox,
		chromedp.WindowSize(1280, 860), chromedp.Flag("force-prefers-reduced-motion", true))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	b := &browser{Context: ctx, t: t}
	if err := chromedp.Run(ctx); err != nil { // starts the browser, which ends with this context
		t.Fatal(err)
	}
	return b
}

// listen records requests and errors.
func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.base+"/") {
			b.foreign = append(b.foreign, e.Request.URL)
		}
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// check fails the test if the pages did what they must not.
func (b *browser) check() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.foreign) > 0 {
		b.t.Errorf("requests to other hosts: %q", b.foreign)
	}
	if len(b.errors) > 0 {
		b.t.Errorf("errors in the console of the browser: %q", b.errors)
	}
}

// run runs actions with a time limit.
func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	if err := b.try(90*time.Second, actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) try(limit time.Duration, actions ...chromedp.Action) error {
	ctx, cancel := context.WithTimeout(b.Context, limit)
	defer cancel()
	return chromedp.Run(ctx, actions...)
}

// read runs an action that changes nothing. It does so again if the browser has loaded another page meanwhile: the
// browser then refuses the action, because the page for which it was meant is gone.
func (b *browser) read(action chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, 90*time.Second)
	defer cancel()
	const gone = -32000 // the code of the error
	for {
		err := chromedp.Run(ctx, action)
		refused, _ := errors.AsType[*cdproto.Error](err)
		if refused != nil && refused.Code == gone && ctx.Err() == nil {
			continue
		}
		if err != nil {
			b.t.Fatal(err)
		}
		return
	}
}

// submit clicks a button that sends a form, and waits until the answer is loaded. Without that, the next action could
// use an element of the page that the browser is leaving.
func (b *browser) submit(selector string) {
	b.t.Helper()
	b.leave(chromedp.Click(selector, chromedp.ByQuery))
}

// press is submit for a button or a link on a page that is kept up to date: it may move before a click of the mouse
// reaches it.
func (b *browser) press(selector string) {
	b.t.Helper()
	b.leave(chromedp.Evaluate(`document.querySelector("`+selector+`").click()`, nil))
}

// leave carries out an action that loads another page, and waits until that is loaded.
func (b *browser) leave(action chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, 90*time.Second)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, action); err != nil {
		b.t.Fatal(err)
	}
}

// open opens a page.
func (b *browser) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.base+path), shown())
}

// visit opens a page by a click on its link in the navigation, or on its link in the page above it.
func (b *browser) visit(path string) {
	b.t.Helper()
	if i := strings.LastIndex(path, "/"); i > 0 {
		b.visit(path[:i])
		b.press(`main a[href='` + path + `']`)
	} else {
		b.submit(`nav a[href='` + path + `']`)
	}
	b.read(shown())
}

// text waits for an element and returns its text. It finds and reads the element in one step, because the page may
// replace it between two.
func (b *browser) text(selector string) string {
	b.t.Helper()
	var out []string
	b.read(chromedp.Poll(`(e => e && [e.innerText])(document.querySelector("`+selector+`"))`, &out))
	return out[0]
}

// shown waits until a page of the console is displayed.
func shown() chromedp.Action {
	return chromedp.Poll(`document.querySelector("#health")?.checkVisibility()`, nil)
}

// shoot saves a screenshot.
func (b *browser) shoot(dir, name string) {
	b.t.Helper()
	var png []byte
	b.run(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// pages are all pages, with a text that each must show.
func pages() map[string]string {
	return map[string]string{
		"/": "Problems now", "/nodes": "Nodes of the cluster", "/nodes/b": "Credentials between nodes",
		"/groups": "Replication groups", "/groups/0": "Log and state on each server", "/applications": "Who calls whom",
		"/state": "Keys of an application", "/components": "statestore", "/try": "Compose a request",
		"/locks": "Locks that have an owner", "/configuration": "configstore",
		"/jobs": "past due", "/actors": "ctors", "/workflows": "Choose instances", "/topics": "Choose topics",
		"/docs": "transaction",
	}
}

func TestConsole_EveryPageOnThreeNodes(t *testing.T) {
	nodes, dir := startCluster(t, "--console-write", "--cluster-token-file", tokenFile(t)), artefacts(t)
	nodes[0].save(t, `[{"key":"order-1","value":{"item":"lamp","total":12.5}},{"key":"order-2","value":"text"}]`)
	use(t, nodes)
	work(t, nodes)
	b := openBrowser(t, nodes[0])
	wait(t, "the charts have a line", func() bool {
		var lines int
		b.read(chromedp.Evaluate(`document.querySelectorAll(".chart polyline").length`, &lines))
		return lines > 2
	})
	for path, want := range pages() {
		b.visit(path)
		if got := b.text("main"); !strings.Contains(got, want) {
			t.Errorf("%s does not show %q:\n%s", path, want, got)
		}
		if problems := append(b.audit(), b.tabs()...); len(problems) > 0 {
			t.Errorf("%s: %s", path, strings.Join(problems, "\n"))
		}
		b.shoot(dir, "page"+strings.ReplaceAll(path, "/", "-"))
	}
	b.open("/nodes/b")
	if text := b.text("#security"); !strings.Contains(text, "token") || !strings.Contains(text, "(in 23 h") {
		t.Errorf("the page does not show when the certificate ends:\n%s", text)
	}
	b.check()
}

func TestConsole_StateIsEditedWithCompareAndSet(t *testing.T) {
	nodes := startCluster(t, "--console-write")
	nodes[0].save(t, `[{"key":"order-1","value":{"total":12}}]`)
	b := openBrowser(t, nodes[0])
	b.open("/state?app=app-a&store=statestore&key=order-1&consistency=strong")
	if got := b.text("#value"); !strings.Contains(got, `"total": 12`) {
		t.Fatalf("the value is not shown: %s", got)
	}
	nodes[0].save(t, `[{"key":"order-1","value":{"total":13}}]`) // the page now shows an old version
	edit := func() {
		b.run(chromedp.Click("#value details > summary", chromedp.ByQuery),
			chromedp.SetValue("#value textarea", `{"total": 99}`, chromedp.ByQuery))
		b.submit("#value .editor button")
	}
	edit()
	b.shoot(artefacts(t), "refusal")
	if got := b.text("main"); !strings.Contains(got, "has changed since") {
		t.Errorf("the refusal is not shown:\n%s", got)
	}
	b.mu.Lock()
	b.errors = nil // the browser logs the answer 409
	b.mu.Unlock()
	b.open("/state?app=app-a&store=statestore&key=order-1&consistency=strong")
	edit()
	if got := b.text("main"); !strings.Contains(got, `"total": 99`) {
		t.Errorf("the new value is not shown:\n%s", got)
	}
	b.check()
}

func TestConsole_ShowsDeadNodeWithinSeconds(t *testing.T) {
	for name, end := range map[string]func(*node){
		"killed": func(n *node) { n.Kill() },
		"frozen": func(n *node) { n.Signal(syscall.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			nodes := startCluster(t)
			b := openBrowser(t, nodes[0])
			wait(t, "all servers vote", func() bool { return strings.Contains(b.text("#groups"), "3 of 3") })
			end(nodes[2])
			ended := time.Now()
			wait(t, "the page shows the dead node", func() bool {
				return strings.Contains(b.text("#health"), "does not answer") ||
					strings.Contains(b.text("#health"), "no leader")
			})
			took := time.Since(ended).Round(time.Millisecond)
			t.Logf("shown after %v", took)
			if took > 5*time.Second {
				t.Error("that is more than 5 s")
			}
			wait(t, "writes work", func() bool {
				return strings.Contains(b.text("#health"), "Reads and writes work, but node c")
			})
			wait(t, "one voter is not reachable", func() bool {
				return strings.Contains(b.text("#groups"), "2 of 3 reachable")
			})
			if problems := b.audit(); len(problems) > 0 {
				t.Error(strings.Join(problems, "\n"))
			}
			b.shoot(artefacts(t), name)
			b.check()
		})
	}
}

func TestConsole_ReadOnlyHasNoFormThatChangesSomething(t *testing.T) {
	nodes := startCluster(t)
	nodes[0].save(t, `[{"key":"order-1","value":1}]`)
	b := openBrowser(t, nodes[0])
	for path := range pages() {
		b.open(path)
		var actions []string
		const script = `Array.from(document.querySelectorAll('form[method=post]'), f => f.getAttribute('action'))`
		b.run(chromedp.Evaluate(script, &actions))
		for _, a := range actions {
			if a != "/logout" && a != "/try" && !strings.HasSuffix(a, "/compare") {
				t.Errorf("%s has a form for %s", path, a)
			}
		}
	}
	b.check()
}

func TestConsole_SignInPageFitsTheWindow(t *testing.T) {
	nodes := startCluster(t)
	link, err := url.Parse(nodes[0].link(t))
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t)
	for _, size := range [][2]int64{{1280, 860}, {1280, 720}, {1024, 600}, {390, 800}} {
		var high bool
		b.run(chromedp.EmulateViewport(size[0], size[1]), chromedp.Navigate("http://"+link.Host),
			chromedp.WaitVisible("main"),
			chromedp.Evaluate(`document.documentElement.scrollHeight > document.documentElement.clientHeight`, &high))
		if high {
			t.Errorf("%d x %d: the page is higher than the window", size[0], size[1])
		}
	}
}

// scheme makes the browser prefer light or dark colors.
func scheme(of string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme",
		Value: of}})
}

func TestConsole_PhoneAndDark(t *testing.T) {
	nodes, dir := startCluster(t), artefacts(t)
	b := openBrowser(t, nodes[0])
	light, dark := scheme("light"), scheme("dark")
	for name, actions := range map[string][]chromedp.Action{
		"phone":      {chromedp.EmulateViewport(390, 800), light},
		"dark":       {chromedp.EmulateViewport(1280, 860), dark},
		"dark-phone": {chromedp.EmulateViewport(390, 800), dark},
	} {
		for _, path := range []string{"/", "/groups/0", "/state"} {
			b.run(actions...)
			b.open(path)
			var overflow bool
			b.run(chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth`,
				&overflow))
			if overflow {
				t.Errorf("%s, %s: the page scrolls sideways", name, path)
			}
			if problems := b.audit(); len(problems) > 0 {
				t.Errorf("%s, %s: %s", name, path, strings.Join(problems, "\n"))
			}
			b.shoot(dir, name+strings.ReplaceAll(path, "/", "-"))
		}
	}
	b.check()
}
