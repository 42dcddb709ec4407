package console

import (
	"bytes"
	"encoding/json"
	"sort"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// pathDoc describes one operation of the HTTP API.
type pathDoc struct {
	tag, verb, path, summary string
	parameters               []parameterDoc
	body, example            string      // media type and type of the request body; example of a body
	answers                  [][2]string // status and what it means
}

type parameterDoc struct {
	Name        string `json:"name"`
	In          string `json:"in"`
	Required    bool   `json:"required"`
	Description string `json:"description"`
	Ref         string `json:"$ref"`
}

// contentDoc describes a request body.
type contentDoc struct {
	Schema struct {
		Ref   string `json:"$ref"`
		Type  string `json:"type"`
		Items struct {
			Ref string `json:"$ref"`
		} `json:"items"`
		Properties map[string]json.RawMessage `json:"properties"`
	} `json:"schema"`
	Example json.RawMessage `json:"example"`
}

// describe describes a body with the given media type. The result body names the media type and the type of the body.
// The result example is empty if there is no example.
func (c *contentDoc) describe(media string) (body, example string) {
	name := func(ref string) string { return ref[strings.LastIndex(ref, "/")+1:] }
	body = c.Schema.Type
	switch {
	case c.Schema.Ref != "":
		body = name(c.Schema.Ref)
	case c.Schema.Items.Ref != "":
		body = "list of " + name(c.Schema.Items.Ref)
	case len(c.Schema.Properties) > 0:
		var fields []string
		for field := range c.Schema.Properties {
			fields = append(fields, field)
		}
		sort.Strings(fields)
		body = "object with " + strings.Join(fields, ", ")
	}
	var text bytes.Buffer
	if len(c.Example) > 0 && json.Indent(&text, c.Example, "", "  ") == nil {
		example = text.String()
	}
	return media + ", " + body, example
}

type responseDoc struct {
	Description string `json:"description"`
	Ref         string `json:"$ref"`
}

type bodyDoc struct {
	Content map[string]contentDoc `json:"content"`
	Ref     string                `json:"$ref"`
}

// parseOpenAPI reads an OpenAPI description.
func parseOpenAPI(text []byte) ([]pathDoc, error) {
	type operation struct {
		Tags       []string               `json:"tags"`
		Summary    string                 `json:"summary"`
		Parameters []parameterDoc         `json:"parameters"`
		Body       bodyDoc                `json:"requestBody"`
		Responses  map[string]responseDoc `json:"responses"`
	}
	var all struct {
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components struct {
			Parameters map[string]parameterDoc `json:"parameters"`
			Bodies     map[string]bodyDoc      `json:"requestBodies"`
			Responses  map[string]responseDoc  `json:"responses"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fault.Wrap(err, "console.New", "the description of the API cannot be read")
	}
	var out []pathDoc
	for path, verbs := range all.Paths {
		for verb, raw := range verbs {
			var o operation
			if err := json.Unmarshal(raw, &o); err != nil {
				continue // parameters of the path, which are no operation
			}
			d := pathDoc{tag: strings.Join(o.Tags, ", "), verb: strings.ToUpper(verb), path: path, summary: o.Summary}
			for _, p := range o.Parameters {
				if p.Ref != "" {
					p = all.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
				}
				d.parameters = append(d.parameters, p)
			}
			if o.Body.Ref != "" {
				o.Body = all.Components.Bodies[strings.TrimPrefix(o.Body.Ref, "#/components/requestBodies/")]
			}
			for media, content := range o.Body.Content {
				d.body, d.example = content.describe(media)
			}
			for status, answer := range o.Responses {
				if answer.Ref != "" {
					answer = all.Components.Responses[strings.TrimPrefix(answer.Ref, "#/components/responses/")]
				}
				d.answers = append(d.answers, [2]string{status, answer.Description})
			}
			sort.Slice(d.answers, func(i, k int) bool { return d.answers[i][0] < d.answers[k][0] })
			out = append(out, d)
		}
	}
	sort.Slice(out, func(i, k int) bool {
		a, b := out[i], out[k]
		return a.tag+" "+a.path+" "+a.verb < b.tag+" "+b.path+" "+b.verb
	})
	return out, nil
}

// docsBody shows the operations of the HTTP API.
func docsBody(r *request) (html, error) {
	var cards, operations []html
	for i := range r.console.paths {
		d := &r.console.paths[i]
		operations = append(operations, operationDoc(d))
		if i+1 == len(r.console.paths) || r.console.paths[i+1].tag != d.tag {
			cards = append(cards, card("api-"+d.tag, d.tag, joined(operations)))
			operations = nil
		}
	}
	return joined(cards), nil
}

func operationDoc(d *pathDoc) html {
	var parameters, answers []html
	for _, p := range d.parameters {
		required := ""
		if p.Required {
			required = "required"
		}
		parameters = append(parameters, row(code(p.Name), text(p.In), text(required), text(p.Description)))
	}
	for _, a := range d.answers {
		answers = append(answers, row(code(a[0]), text(a[1])))
	}
	name := d.verb + " " + d.path
	var body html
	if len(parameters) > 0 {
		body = grid("Parameters of "+name, "Parameter|In|Required|Meaning", parameters)
	}
	if d.body != "" {
		body += h(`<p>Body: %</p>`, esc(d.body))
	}
	if d.example != "" {
		body += h(`<pre tabindex="0"><code>%</code></pre>`, esc(d.example))
	}
	return h(`<details class="operation"><summary><span class="verb %">%</span><code>%</code>`+
		`<span class="dim">%</span></summary>%%</details>`, esc(strings.ToLower(d.verb)), esc(d.verb), esc(d.path),
		esc(d.summary), body, grid("Answers of "+name, "Status|Meaning", answers))
}
