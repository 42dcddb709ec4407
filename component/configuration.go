package component

import (
	"cmp"
	"errors"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Configuration is the content of a document of kind Configuration.
type Configuration struct {
	Name          string
	Pos           Pos
	AccessControl *AccessControl  // nil = the section is not there
	Tracing       *TracingConfig  // nil = the section is not there
	Metrics       *MetricsConfig  // nil = the section is not there
	APILog        *APILogConfig   // nil = the section is not there
	API           *APIRules       // nil = all parts of the API are served
	Workflow      *WorkflowConfig // nil = the section is not there
	Pipeline      []PipelineHandler
	AppPipeline   []PipelineHandler
	NoReload      bool // the feature HotReload is off: changed files are not read

	// Features are the names in spec.features that are enabled; nil = the section is not there.
	Features []string

	// Sections has the YAML of every section of spec, for packages that read a section themselves. It must not be
	// modified. ParseConfigurations does not merge it.
	Sections map[string]*yaml.Node

	// Unused lists sections that are recognised and have no effect.
	Unused []Problem
}

// Sections of a Configuration resource that restrict applications. A third such section, components, is not supported.
// A document with this section is an error, because ignoring the section would allow what its author wanted to forbid.
const (
	sectionAccessControl = "accessControl"
	sectionSecrets       = "secrets"
)

func unusedSections() []string {
	return []string{"nameResolution", "wasm"}
}

// refusedSections returns the sections that are errors. The value of each section is a hint on what to do instead.
func refusedSections() map[string]string {
	return map[string]string{
		"components": "denying types of components is not available: remove the section, and the components",
	}
}

// ParseConfiguration parses a document of kind Configuration. It returns an error with file and line for an unknown
// field, and for an unsupported section that restricts applications.
func ParseConfiguration(doc Document) (Configuration, error) {
	c, err := parseConfiguration(doc, &Configuration{})
	c.complete()
	return c, err
}

// ParseConfigurations parses documents of kind Configuration and merges them into one. A field that no document sets
// keeps its value from defaults. As in Dapr, a field or a list replaces the one in earlier documents, with these
// exceptions:
//
//   - The API rules and the pipeline handlers of all documents apply, in the order of the documents.
//   - The reload of component files is off if any document turns it off.
func ParseConfigurations(docs []Document, defaults Configuration) (Configuration, error) {
	out := defaults
	var errs []error
	for _, doc := range docs {
		c, err := parseConfiguration(doc, &out)
		errs = append(errs, err)
		out.add(c)
	}
	out.complete()
	return out, errors.Join(errs...)
}

// parseConfiguration parses one document. earlier is the merged result of the previous documents. If the document does
// not set a field of accessControl, tracing, metrics, logging or workflow, the field keeps its value from earlier.
func parseConfiguration(doc Document, earlier *Configuration) (Configuration, error) {
	p := docParser{file: doc.Pos.File}
	c := Configuration{Name: doc.Name, Pos: doc.Pos, Sections: map[string]*yaml.Node{},
		AccessControl: earlier.AccessControl, Tracing: earlier.Tracing, Metrics: earlier.Metrics,
		APILog: earlier.APILog, Workflow: earlier.Workflow}
	ignore := func(*yaml.Node) {}
	p.readFields(doc.Body, "", fields{
		"apiVersion": ignore, "kind": ignore, "metadata": ignore, "scopes": ignore, "status": ignore,
		"spec": func(n *yaml.Node) { p.configuration(n, &c) },
	})
	p.problems.order(doc)
	return c, p.problems.Err("component.ParseConfiguration")
}

// add merges a further document into c. The document must have been parsed by parseConfiguration, with c as the earlier
// result.
func (c *Configuration) add(next Configuration) {
	c.AccessControl, c.Tracing, c.Metrics, c.APILog = next.AccessControl, next.Tracing, next.Metrics, next.APILog
	c.Workflow = next.Workflow
	if next.API != nil {
		rules := cmp.Or(c.API, &APIRules{})
		rules.Allowed = append(rules.Allowed, next.API.Allowed...)
		rules.Denied = append(rules.Denied, next.API.Denied...)
		c.API = rules
	}
	c.Pipeline = append(c.Pipeline, next.Pipeline...)
	c.AppPipeline = append(c.AppPipeline, next.AppPipeline...)
	c.NoReload = c.NoReload || next.NoReload
	if next.Features != nil {
		c.Features = next.Features
	}
	c.Unused = append(c.Unused, next.Unused...)
}

// complete sets the defaults that depend on several fields, and records settings that have no effect. It must be called
// after all documents are merged.
func (c *Configuration) complete() {
	if a := c.AccessControl; a != nil && a.DefaultAction == "" {
		a.DefaultAction = Allow
		if len(a.Policies) > 0 {
			a.DefaultAction = Deny
		}
	}
	if t := c.Tracing; t != nil && t.OTLP != nil && t.OTLP.Endpoint == "" {
		t.OTLP = nil
	}
	if m := c.Metrics; m != nil && !m.DaprNames && m.needsDaprNames() != "" {
		c.unused(m.Pos, "spec.metrics."+m.needsDaprNames()+" has no effect without spec.metrics.daprNames",
			"set daprNames: true, or use the names in docs/metrics.md")
	}
}

// copyOf returns a copy of *earlier, a section from earlier documents. If earlier is nil, it returns a copy of
// defaults.
func copyOf[T any](earlier *T, defaults T) *T {
	if earlier != nil {
		defaults = *earlier
	}
	return &defaults
}

func (p *docParser) configuration(n *yaml.Node, c *Configuration) {
	if isNull(n) {
		return
	}
	known := fields{
		sectionAccessControl: func(n *yaml.Node) { p.accessControl(n, c) },
		sectionSecrets:       func(*yaml.Node) {}, // Document.SecretScopes reads this section
		"mtls":               p.mtls,
		"tracing":            func(n *yaml.Node) { p.tracing(n, c) },
		"metric":             func(n *yaml.Node) { p.metrics(n, c) },
		"metrics":            func(n *yaml.Node) { p.metrics(n, c) },
		"logging":            func(n *yaml.Node) { p.logging(n, c) },
		"api":                func(n *yaml.Node) { p.api(n, c) },
		"httpPipeline":       func(n *yaml.Node) { p.pipeline(n, "spec.httpPipeline", &c.Pipeline) },
		"appHttpPipeline":    func(n *yaml.Node) { p.pipeline(n, "spec.appHttpPipeline", &c.AppPipeline) },
		"features":           func(n *yaml.Node) { p.features(n, c) },
		"workflow":           func(n *yaml.Node) { p.workflow(n, c) },
	}
	for _, name := range unusedSections() {
		known[name] = func(n *yaml.Node) {
			c.Unused = append(c.Unused, Problem{Pos: p.pos(n), Text: "spec." + name + " has no effect here"})
		}
	}
	for name, fix := range refusedSections() {
		known[name] = func(n *yaml.Node) {
			if len(n.Content) > 0 {
				p.problems.add(p.pos(n), fix, "spec.%s would have no effect", name)
			}
		}
	}
	if !p.readFields(n, "spec", known) {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !isNull(n.Content[i+1]) {
			c.Sections[n.Content[i].Value] = n.Content[i+1]
		}
	}
	slices.SortFunc(c.Unused, func(a, b Problem) int { return a.Pos.Line - b.Pos.Line })
}

// mtls reports a problem if the document enables mTLS, because in Quorate only --cluster-token-file enables mTLS.
func (p *docParser) mtls(n *yaml.Node) {
	if on := child(n, "enabled"); on != nil && p.boolean(on, "spec.mtls.enabled") {
		p.problems.add(p.pos(on), "traffic between nodes is secured by --cluster-token-file: give it, and remove "+
			"the section", "spec.mtls would have no effect")
	}
}
