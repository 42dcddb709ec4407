package appcmd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
	"github.com/quorate/quorate/node"
)

// call is one call of a method.
type call struct {
	app, method, verb string
	data              string
	file              string
	headers           []string
	socket            string // directory with the Unix socket of the API
}

func (m *commands) invokeCommand() *cobra.Command {
	api, in := command.APIFlags{Shell: m.Shell}, call{verb: http.MethodPost}
	c := &cobra.Command{
		Use:   "invoke [app] [method] [flags]",
		Short: "Call a method of an application",
		Long: "Call a method of an application through the HTTP API of a node, and print the answer. Without\n" +
			"--http-port and --address, it uses the node of that application if that runs on this machine, as\n" +
			"dapr invoke does, and otherwise any node of this user on this machine.",
		Example: "  quorate invoke orders status --verb GET\n  quorate invoke orders new --data '{\"total\": 12.5}'\n" +
			"  quorate invoke --app-id orders --method new --data-file order.json",
		Args: cobra.MaximumNArgs(2),
	}
	api.Bind(c)
	f := c.Flags()
	f.StringVarP(&in.app, "app-id", "a", "", "`id` of the application, instead of the first argument")
	f.StringVarP(&in.method, "method", "m", "", "`method` to call, instead of the second argument; it may have a query")
	f.StringVarP(&in.verb, "verb", "v", in.verb, "HTTP `verb`")
	f.StringVarP(&in.data, "data", "d", "", "JSON `text` to send")
	f.StringVarP(&in.file, "data-file", "f", "", "`file` with the JSON text to send; - = standard input")
	f.StringArrayVarP(&in.headers, "header", "H", nil, "`header` to send, as name:value; may be repeated")
	f.StringVarP(&in.socket, "unix-domain-socket", "u", "", "`directory` of the Unix sockets of the node")
	c.MarkFlagsMutuallyExclusive("data", "data-file")
	c.RunE = func(c *cobra.Command, args []string) error {
		if in.app == "" && len(args) > 0 {
			in.app, args = args[0], args[1:]
		}
		if in.method == "" && len(args) > 0 {
			in.method, args = args[0], args[1:]
		}
		if in.app == "" || in.method == "" || len(args) > 0 {
			return command.Usagef("name one application and one method (usage: %s)", c.UseLine())
		}
		config, err := m.Resolve(api.Settings(), c.Flags(), nil)
		if err != nil {
			return err
		}
		notes, _ := list(config.Data.RuntimeDir) // without notes, the default port is used
		for _, n := range notes {
			if api.Default == "" || slices.Contains(n.Apps, in.app) {
				api.Default = n.Run.HTTP
			}
		}
		body, err := in.body(m.Stdin)
		if err != nil {
			return err
		}
		return api.With(c, func(client *command.APIClient) error {
			if in.socket != "" {
				client.UseSocket(filepath.Join(in.socket, "dapr-"+in.app+"-http.socket"))
			}
			return m.invoke(c.Context(), client, config, in, body)
		})
	}
	c.ValidArgsFunction = cobra.NoFileCompletions
	return c
}

// body returns the body of the request, or nil if there is none.
func (in call) body(stdin io.Reader) ([]byte, error) {
	switch {
	case in.file == "-":
		return io.ReadAll(stdin)
	case in.file != "":
		text, err := userfile.ReadOnce(in.file)
		if err != nil {
			return nil, command.Usage(&fault.Error{Code: fault.Invalid, Op: "cli.invoke",
				Msg: "the file of --data-file cannot be read", Err: command.RootPath(err), Key: in.file})
		}
		return text, nil
	case in.data != "":
		return []byte(in.data), nil
	}
	return nil, nil
}

// parse returns the request headers and the URL path for the call. It returns a usage error if the verb, a header or
// the method is not valid.
func (in call) parse() (header http.Header, address string, err error) {
	if !httpguts.ValidHeaderFieldName(in.verb) { // verbs and header names are both tokens of HTTP
		return nil, "", command.Usagef("the verb %q is not valid", in.verb)
	}
	header = http.Header{}
	for _, h := range in.headers {
		name, value, ok := strings.Cut(h, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !ok || name == "":
			return nil, "", command.Usagef("the header %q is not name:value", h)
		case !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value):
			return nil, "", command.Usagef("the header %q is not valid", h)
		}
		header.Add(name, value)
	}
	method := strings.ReplaceAll(strings.TrimPrefix(in.method, "/"), " ", "%20")
	address = "/v1.0/invoke/" + url.PathEscape(in.app) + "/method/" + strings.TrimSuffix(method, "?")
	if u, err := url.Parse(address); err != nil || u.Fragment != "" || strings.HasSuffix(method, "#") {
		return nil, "", command.Usagef("the method %q is not a path of a URL (escape %%, # and control characters)",
			in.method)
	}
	return header, address, nil
}

// invoke calls the method and prints the response. It returns an error if the status of the response is 300 or more.
func (m *commands) invoke(ctx context.Context, client *command.APIClient, config node.Config, in call,
	body []byte) error {
	header, address, err := in.parse()
	if err != nil {
		return err
	}
	status, text, err := client.Call(ctx, strings.ToUpper(in.verb), address, header, body, command.MaxAnswer)
	if err != nil {
		return err
	}
	if status >= http.StatusMultipleChoices {
		return m.refused(ctx, config, in, status, text)
	}
	if _, err := m.Stdout.Write(text); err != nil {
		return err
	}
	if command.IsTerminal(m.Stdout) && len(text) > 0 && text[len(text)-1] != '\n' {
		_, err = fmt.Fprintln(m.Stdout)
	}
	return err
}

// refused returns the error for a response with an error status. If the node refused the call, the result is the error
// of the node. If the application sent the response, the error quotes the response.
func (m *commands) refused(ctx context.Context, config node.Config, in call, status int, text []byte) error {
	err := command.CallRefusal(in.app, status, text)
	e, ok := fault.As(err)
	if !ok {
		return err
	}
	if !command.IsRefusal(text) {
		if shown := strings.TrimSpace(string(text[:min(len(text), 1<<10)])); shown != "" {
			e.Msg += ": " + command.Printable(shown)
		}
		return e
	}
	if e.Hint == "" && strings.Contains(e.Msg, in.app) {
		if apps := m.apps(ctx, config); !slices.Contains(apps, in.app) {
			e.Hint = hintFor(in.app, apps)
		}
	}
	return err
}

// apps returns the applications that run on this machine. If a node of this user answers, apps also returns all
// applications that the node knows. An application may be in the result several times.
func (m *commands) apps(ctx context.Context, config node.Config) (out []string) {
	notes, _ := list(config.Data.RuntimeDir) // no note is no reason to fail
	for _, n := range notes {
		out = append(out, n.Apps...)
	}
	dir, err := command.ChooseDir(ctx, config)
	if err != nil || dir == "" {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, command.AdminTime)
	defer cancel()
	var known []schema.AppInstance
	if (&command.AdminClient{DataDir: dir}).Get(ctx, adminapi.AppsPath, &known) == nil {
		for _, a := range known {
			out = append(out, a.App)
		}
	}
	return out
}
