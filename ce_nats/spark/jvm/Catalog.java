package io.cenats.spark;

import java.util.Arrays;

import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The catalog through which Spark finds the functions; {@code spark.sql.catalog.ce_nats} is set to this class. */
public final class Catalog implements FunctionCatalog {
    private String name;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Identifier[] listFunctions(String[] namespace) {
        return Arrays.stream(OutputKind.values())
                .map(kind -> Identifier.of(namespace, kind.toString()))
                .toArray(Identifier[]::new);
    }

    @Override
    public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
        for (OutputKind kind : OutputKind.values()) {
            if (identifier.namespace().length == 0 && identifier.name().equals(kind.toString())) {
                return new Unbound(kind);
            }
        }
        throw new NoSuchFunctionException(identifier);
    }

    /** A function before it is bound to the types of its arguments. */
    private record Unbound(OutputKind kind) implements UnboundFunction {
        private static final long serialVersionUID = 1;

        @Override
        public BoundFunction bind(StructType arguments) {
            return new Decoder(kind, arguments);
        }

        @Override
        public String name() {
            return kind.toString();
        }

        @Override
        public String description() {
            return kind + "(headers, data): the CloudEvent in a NATS message";
        }
    }
}
