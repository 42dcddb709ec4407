package docs_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	patience = 15 * time.Minute // for one line; a busy machine compiles the tests of a line for minutes
	prompt   = "\x01"           // stands around what the shell says about a line
)

// TestPages_CommandsPrintWhatPagesShow executes every command of every page, in a clean clone with an empty home
// directory. It compares the output with the output that the page shows.
func TestPages_CommandsPrintWhatPagesShow(t *testing.T) {
	if os.Getenv(runVariable) == "" {
		t.Skip("make docs-test types the lines of the documentation")
	}
	machines(t)
	binary := os.Getenv(binaryVariable)
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "quorate")
		build := exec.CommandContext(t.Context(), "make", "-C", root, "build", "BIN="+filepath.Dir(binary))
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	env := goEnvironment(t)
	for _, p := range pages(t) {
		if !p.runs() {
			continue
		}
		t.Run(strings.ReplaceAll(p.path, "/", "."), func(t *testing.T) { // a slash would divide -run
			t.Parallel()
			if _, err := exec.LookPath("python3"); err != nil && p.types("python3") {
				t.Skip("its programs need python3")
			}
			begin := time.Now()
			out, err := runInside(t, append(env, insideVariable+"="+p.path, binaryVariable+"="+binary)...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s\n%s", time.Since(begin).Round(time.Second), out)
		})
	}
}

// goEnvironment returns environment variables with the folders of the go command, because the home directory in the
// sandbox has no caches.
func goEnvironment(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE", "GOMODCACHE", "GOPATH", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	v := strings.Split(strings.TrimSpace(string(out)), "\n")
	return []string{"GOCACHE=" + v[0], "GOMODCACHE=" + v[1], "GOPATH=" + v[2], "GOROOT=" + v[3], "GOPROXY=off",
		"GOTOOLCHAIN=local", "GOFLAGS=" + os.Getenv("GOFLAGS"), "CGO_ENABLED=" + os.Getenv("CGO_ENABLED")}
}

// inside is the program in the sandbox. It executes the commands of a page and prints the result.
func inside() error {
	name := os.Getenv(insideVariable)
	text := []byte(nil)
	if name != probe {
		var err error
		if text, err = os.ReadFile(filepath.Join(root, filepath.FromSlash(name))); err != nil {
			return err
		}
	}
	m, err := setUp()
	if err != nil || name == probe {
		return err
	}
	p, err := parse(name, string(text))
	if err != nil {
		return err
	}
	r := reader{machine: m, page: p, shells: map[string]*shell{}}
	defer r.close()
	return r.read()
}

// reader types a page.
type reader struct {
	machine *machine
	page    page
	shells  map[string]*shell // by the letter of the machine, "" is the one where most is typed
	running []*server
	printed string // by the last block
	hushed  bool   // an answer of 400 or more was printed, and the page has yet to show it
}

func (r *reader) close() {
	for _, s := range r.shells {
		s.close()
	}
}

func (r *reader) read() error {
	for i, b := range r.page.parts {
		if err := r.part(b); err != nil {
			return fmt.Errorf("%s:%d: %w%s", r.page.path, b.line, err, r.logs())
		}
		last := i == len(r.page.parts)-1
		if r.hushed && (last || r.page.parts[i+1].mark.word != prints) {
			return fmt.Errorf("%s:%d: the answer says that it failed, and the page does not show that:\n%s",
				r.page.path, b.line, r.printed)
		}
	}
	return nil
}

func (r *reader) part(b part) error {
	switch {
	case b.mark.word == end:
		return r.endAll()
	case b.mark.word == notRun:
		return nil
	case b.mark.word == file:
		return r.file(b.mark.text, b.text)
	case b.mark.word == prints:
		r.hushed = false
		return compare(b.text, r.printed)
	case b.mark.word == hidden:
		return r.block(b.mark.text+"\n", "", "")
	case b.mark.word == on:
		for _, host := range strings.Fields(b.mark.text) {
			if err := r.block(strings.Replace(b.text, "--node-id a", "--node-id "+host, 1), host, ""); err != nil {
				return fmt.Errorf("on %s: %w", host, err)
			}
		}
		return nil
	case b.mark.word == asRoot && os.Getenv(rootVariable) == "":
		fmt.Printf("%8s  line %d is for root only: %s\n", "", b.line, b.mark.text)
	case b.language == "sh":
		answer := ""
		if b.mark.word == answers {
			answer = b.mark.text
		}
		if err := r.block(b.text, "", answer); err != nil {
			return err
		}
		r.hushed = regexp.MustCompile(`(?m)^HTTP/[0-9.]+ [45]\d\d`).MatchString(r.printed)
	}
	return nil
}

func (r *reader) file(name, text string) error {
	s, err := r.shell("")
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// block executes the commands of a block on a host. A program that does not end keeps running in the background.
// Before each other command, block waits until these programs are ready. answer is the input of commands that ask for
// one.
func (r *reader) block(text, host, answer string) error {
	s, err := r.shell(host)
	if err != nil {
		return err
	}
	commands, err := split(text)
	if err != nil {
		return err
	}
	r.printed = ""
	for _, c := range commands {
		begin := time.Now()
		if stays(c) {
			server, err := s.start(c, r.machine.folder(fmt.Sprintf("log%d", len(r.running))))
			if err != nil {
				return err
			}
			r.running = append(r.running, server)
			fmt.Printf("%8s  %s %s &\n", "", host, c)
			continue
		}
		if err := r.ready(); err != nil {
			return err
		}
		out, err := s.run(c, answer)
		r.printed += out
		fmt.Printf("%7.1fs  %s %s\n", time.Since(begin).Seconds(), host, c)
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", c, err, r.printed)
		}
	}
	return nil
}

// stays reports whether a command runs until it is stopped.
func stays(command string) bool {
	return regexp.MustCompile(`^(bin/)?quorate run\b|^make (run|cluster)\b`).MatchString(command) &&
		!strings.HasSuffix(command, "&")
}

// split returns the commands of a block. A command is one line, or several that belong together.
func split(text string) (out []string, err error) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		command := lines[i]
		if strings.TrimSpace(command) == "" || strings.HasPrefix(command, "#") {
			continue
		}
		if m := regexp.MustCompile(`<<-? *'?([A-Za-z]+)'?`).FindStringSubmatch(command); m != nil {
			for i++; i < len(lines) && lines[i] != m[1]; i++ {
				command += "\n" + lines[i]
			}
			command += "\n" + m[1]
		}
		for !whole(command) {
			if i++; i >= len(lines) {
				return nil, fmt.Errorf("this is no whole command: %s", command)
			}
			command += "\n" + lines[i]
		}
		out = append(out, command)
	}
	return out, nil
}

func whole(command string) bool {
	return !strings.HasSuffix(command, `\`) && exec.Command("sh", "-n", "-c", command).Run() == nil
}

// server is a command that stays.
type server struct {
	command string
	log     string
	shell   *shell
	cmd     *exec.Cmd
	ended   chan struct{}
	ready   bool
}

// ready waits until all that was started can be used.
func (r *reader) ready() error {
	for _, s := range r.running {
		if err := s.wait(); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) wait() error {
	if s.ready {
		return nil
	}
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		log, err := os.ReadFile(s.log)
		if err != nil {
			return err
		}
		select {
		case <-s.ended:
			return fmt.Errorf("%s: it ended", s.command)
		default:
		}
		switch {
		case strings.HasPrefix(s.command, "make cluster"):
			s.ready = strings.Contains(string(log), "Ctrl-C ends all nodes.")
		default:
			s.ready = healthy(&client, s.api())
		}
		if s.ready {
			return nil
		}
	}
	return fmt.Errorf("%s: not ready after %s", s.command, patience)
}

// api is the address at which the command serves.
func (s *server) api() string {
	port := "3500"
	if m := regexp.MustCompile(`--(?:dapr-)?http-port[ =](\d+)`).FindStringSubmatch(s.command); m != nil {
		port = m[1]
	}
	return s.shell.loopback + ":" + port
}

func healthy(client *http.Client, api string) bool {
	resp, err := client.Get("http://" + api + "/v1.0/healthz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusNoContent
}

// logs are the last lines of everything that runs.
func (r *reader) logs() string {
	out := ""
	for _, s := range r.running {
		log, _ := os.ReadFile(s.log)
		if len(log) > 6000 {
			log = log[len(log)-6000:]
		}
		out += "\n-- " + s.command + "\n" + string(log)
	}
	return out
}

// endAll is Ctrl-C in every terminal.
func (r *reader) endAll() error {
	for _, s := range r.running {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGINT) // it may have ended
	}
	late := time.After(patience)
	for _, s := range r.running {
		select {
		case <-s.ended:
		case <-late:
			return fmt.Errorf("%s does not end", s.command)
		}
	}
	r.running = nil
	return nil
}

// shell executes commands one after the other. Variables and the working directory are kept between them.
type shell struct {
	dir      string
	loopback string
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	stdout   *bufio.Reader
	errors   *os.File
	late     atomic.Bool
}

// shell returns the shell of a machine, and starts it at the first call. host is a letter, or "" for the machine on
// which most commands are typed.
func (r *reader) shell(host string) (*shell, error) {
	if s := r.shells[host]; s != nil {
		return s, nil
	}
	s := &shell{dir: r.machine.clone, loopback: "127.0.0.1"}
	home := r.machine.folder("home" + host)
	env := []string{
		"HOME=" + home, "XDG_RUNTIME_DIR=" + filepath.Join(home, "run"), "TMPDIR=" + r.machine.folder("tmp"),
		"LANG=C.UTF-8",
		"PATH=" + r.machine.folder("path") + ":" + os.Getenv("PATH"),
	}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOROOT", "GOPROXY", "GOTOOLCHAIN", "GOFLAGS",
		"CGO_ENABLED"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	if host != "" {
		s.dir, s.loopback = home, loopback(host)
		env = append(env, "QUORATE_BIND_ADDRESS="+address(host).String(), "QUORATE_LISTEN_ADDRESS="+s.loopback,
			"QUORATE_METRICS_LISTEN_ADDRESS="+s.loopback)
	}
	bin := filepath.Join(r.machine.clone, "bin")
	for _, dir := range []string{home, filepath.Join(home, "run"), r.machine.folder("tmp"), bin,
		r.machine.folder("path")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	built := filepath.Join(bin, "quorate") // a copy: make build writes over it
	err := copyFile(os.Getenv(binaryVariable), built)
	if err == nil {
		err = os.Symlink(built, filepath.Join(r.machine.folder("path"), "quorate"))
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if s.errors, err = os.CreateTemp(r.machine.dir, "stderr"); err != nil {
		return nil, err
	}
	s.cmd = exec.Command("sh")
	s.cmd.Env, s.cmd.Dir, s.cmd.Stderr = env, s.dir, s.errors
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.stdout = bufio.NewReader(out)
	r.shells[host] = s
	return s, s.cmd.Start()
}

func (s *shell) close() {
	_ = s.stdin.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = s.errors.Close()
}

// run types a command and returns what it printed. An exit code other than 0 is an error.
func (s *shell) run(command, answer string) (string, error) {
	timer := time.AfterFunc(patience, func() { s.late.Store(true); _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	from, err := s.errors.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(s.stdin, "{ %s\n} <<'ANSWER'\n%s\nANSWER\nprintf '\\001%%d\\001' $?\n", command,
		answer); err != nil {
		return "", err
	}
	out, err := s.stdout.ReadString(prompt[0])
	out = strings.TrimSuffix(out, prompt)
	code, err2 := s.stdout.ReadString(prompt[0])
	if err := errors.Join(err, err2); err != nil {
		if s.late.Load() {
			err = fmt.Errorf("not done after %s", patience)
		}
		return out, err
	}
	if n, err := strconv.Atoi(strings.TrimSuffix(code, prompt)); err != nil || n != 0 {
		said, _ := os.ReadFile(s.errors.Name())
		return out, fmt.Errorf("exit code %d: %s", n, said[min(int(from), len(said)):])
	}
	return out, nil
}

// start executes a command that does not end, as in its own terminal.
func (s *shell) start(command, log string) (*server, error) {
	where, err := s.run("pwd", "")
	if err != nil {
		return nil, err
	}
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	v := &server{command: command, log: log, shell: s, ended: make(chan struct{}),
		cmd: exec.Command("sh", "-c", command)}
	v.cmd.Env, v.cmd.Dir, v.cmd.Stdout, v.cmd.Stderr = s.cmd.Env, strings.TrimSpace(where), f, f
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what Ctrl-C reaches
	if err := v.cmd.Start(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	go func() {
		defer close(v.ended)
		_ = v.cmd.Wait() // it ends as a page ends it
		_ = f.Close()
	}()
	return v, nil
}

// compare returns an error if the output does not match what the page shows. There, … matches any text, and on a
// line of its own any number of lines.
func compare(shown, printed string) error {
	var pattern strings.Builder
	pattern.WriteString(`^`)
	for line := range strings.Lines(shown) {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " \n")), "…", ".*?") +
			`[ \r]*\n`)
	}
	pattern.WriteString(`$`)
	if !strings.HasSuffix(printed, "\n") {
		printed += "\n"
	}
	if !regexp.MustCompile(pattern.String()).MatchString(printed) {
		return fmt.Errorf("printed was\n%s\nand the page shows\n%s", printed, shown)
	}
	return nil
}

func TestCompare_Output(t *testing.T) {
	for _, c := range []struct {
		shown, printed string
		same           bool
	}{
		{"a\n", "a", true},
		{"HTTP/1.1 200 OK\nEtag: …\n…\n{\"n\": 1}\n", "HTTP/1.1 200 OK\r\nEtag: 17\r\nDate: x\r\n\r\n{\"n\": 1}",
			true},
		{"a  b\n", "a  b   \n", true},
		{"a\n", "b", false},
		{"a\n", "a\nb\n", false},
		{"a …\n", "a\nb\n", false},
		{"a\n…\nc\n", "a\nb\n", false},
	} {
		if err := compare(c.shown, c.printed); (err == nil) != c.same {
			t.Errorf("%q and %q: %v", c.shown, c.printed, err)
		}
	}
}

func TestCommands_SplitBlocks(t *testing.T) {
	got, err := split("# a comment\na 'b\nc' # d\n\ncat > f <<'END'\nx 'y\nEND\ne \\\n  f\n")
	want := []string{"a 'b\nc' # d", "cat > f <<'END'\nx 'y\nEND", "e \\\n  f"}
	if err != nil || strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := split("a 'b\n"); err == nil {
		t.Error("a quote without end is taken")
	}
}
