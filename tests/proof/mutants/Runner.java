import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.ObjectStreamClass;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import javax.tools.FileObject;
import javax.tools.ForwardingJavaFileManager;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileManager;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.StandardLocation;
import javax.tools.ToolProvider;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Compiles the Java decoder with one changed file, decodes all rows of a file, and compares them with what the codec
 * decodes. One process tests many mutants; {@code java_run.py} has the other end.
 */
public final class Runner {
    private static final long NANOS = 1_000_000_000;

    private final Map<String, String> sources = new HashMap<>();
    private final String programName;
    private final String programOutput;
    private final List<Group> groups = new ArrayList<>();
    private final JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
    private final JavaFileManager files = compiler.getStandardFileManager(null, null, null);

    /** Rows with headers and extensions of the same types; {@code rows} is null if the types are not valid. */
    private record Group(String function, StructType types, String schema, List<Row> rows) {}

    private record Row(Object headers, byte[] data, byte[] expected) {}

    /** A difference between a mutant and the codec. */
    private static final class Difference extends Exception {
        private static final long serialVersionUID = 1;

        Difference(String text) {
            super(text);
        }
    }

    /** Arguments are a folder with sources, a program that prints, its output, a file with rows, and seconds. */
    public static void main(String[] arguments) throws Exception {
        Runner runner = new Runner(arguments);
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out));
        long limit = Long.parseLong(arguments[4]) * NANOS;
        for (byte[] name = bytes(in); name != null; name = bytes(in)) {
            write(out, runner.outcome(text(name), text(bytes(in)), limit).getBytes(StandardCharsets.UTF_8));
            out.flush();
        }
    }

    private Runner(String[] arguments) throws IOException {
        try (var paths = Files.newDirectoryStream(Path.of(arguments[0]), "*.java")) {
            for (Path path : paths) {
                sources.put(path.getFileName().toString(), Files.readString(path));
            }
        }
        Path program = Path.of(arguments[1]);
        sources.put(program.getFileName().toString(), Files.readString(program));
        programName = program.getFileName().toString().replace(".java", "");
        programOutput = Files.readString(Path.of(arguments[2]));
        try (var in = new DataInputStream(new BufferedInputStream(Files.newInputStream(Path.of(arguments[3]))))) {
            for (int count = in.readInt(); count > 0; count--) {
                groups.add(group(in));
            }
        }
    }

    /** Return {@code survived}, {@code invalid} if it does not compile, {@code timeout}, or a difference. */
    private String outcome(String name, String source, long limit) throws InterruptedException {
        Map<String, byte[]> classes = compiled(name, source);
        if (classes == null) {
            return "invalid";
        }
        String[] found = {"timeout"};
        Thread thread = new Thread(null, () -> found[0] = check(new Classes(classes)), "mutant", 16 << 20);
        thread.setDaemon(true);
        thread.start();
        var threads = ManagementFactory.getThreadMXBean();
        while (thread.isAlive() && threads.getThreadCpuTime(thread.getId()) < limit) {
            thread.join(20);
        }
        return found[0];
    }

    // --- Compilation -------------------------------------------------------------------------------------------------

    private Map<String, byte[]> compiled(String changed, String changedText) {
        List<JavaFileObject> units = new ArrayList<>();
        for (Map.Entry<String, String> source : sources.entrySet()) {
            boolean isChanged = source.getKey().equals(changed);
            units.add(new Source(source.getKey(), isChanged ? changedText : source.getValue()));
        }
        Map<String, ByteArrayOutputStream> outputs = new HashMap<>();
        List<String> options = List.of("-proc:none", "-nowarn", "-implicit:none");
        PrintStream errors = System.err;
        boolean isValid = compiler.getTask(null, new Memory(files, outputs), ignored -> {}, options, null, units).call();
        System.setErr(errors);
        if (!isValid) {
            return null;
        }
        Map<String, byte[]> classes = new HashMap<>();
        outputs.forEach((name, output) -> classes.put(name, output.toByteArray()));
        return classes;
    }

    private static final class Source extends SimpleJavaFileObject {
        private final String text;

        Source(String name, String text) {
            super(URI.create("string:///" + name), Kind.SOURCE);
            this.text = text;
        }

        @Override
        public CharSequence getCharContent(boolean ignoreEncodingErrors) {
            return text;
        }
    }

    /** Keeps classes in memory. */
    private static final class Memory extends ForwardingJavaFileManager<JavaFileManager> {
        private final Map<String, ByteArrayOutputStream> outputs;

        Memory(JavaFileManager files, Map<String, ByteArrayOutputStream> outputs) {
            super(files);
            this.outputs = outputs;
        }

        @Override
        public JavaFileObject getJavaFileForOutput(
                JavaFileManager.Location location, String name, JavaFileObject.Kind kind, FileObject sibling) {
            return new SimpleJavaFileObject(URI.create("memory:///" + name.replace('.', '/')), kind) {
                @Override
                public ByteArrayOutputStream openOutputStream() {
                    return outputs.computeIfAbsent(name, ignored -> new ByteArrayOutputStream());
                }
            };
        }
    }

    private static final class Classes extends ClassLoader {
        private final Map<String, byte[]> classes;

        Classes(Map<String, byte[]> classes) {
            super(Runner.class.getClassLoader());
            this.classes = classes;
        }

        @Override
        protected Class<?> findClass(String name) throws ClassNotFoundException {
            byte[] found = classes.get(name);
            if (found == null) {
                throw new ClassNotFoundException(name);
            }
            return defineClass(name, found, 0, found.length);
        }
    }

    // --- Checks ------------------------------------------------------------------------------------------------------

    private String check(Classes classes) {
        try {
            FunctionCatalog catalog = (FunctionCatalog) classes.loadClass("io.cenats.spark.Catalog")
                    .getDeclaredConstructor()
                    .newInstance();
            for (int index = 0; index < groups.size(); index++) {
                check(catalog, groups.get(index), "group " + index);
            }
            checkProgram(classes);
            return "survived";
        } catch (Difference difference) {
            return difference.getMessage();
        } catch (Throwable error) {
            return error.toString();
        }
    }

    private static void check(FunctionCatalog catalog, Group group, String name) throws Throwable {
        ScalarFunction<?> function = null;
        try {
            var found = catalog.loadFunction(Identifier.of(new String[0], group.function));
            function = (ScalarFunction<?>) copied(found.bind(group.types), catalog.getClass().getClassLoader());
        } catch (UnsupportedOperationException error) {
            require(group.rows == null, name + " of types that are valid");
            return;
        }
        require(group.rows != null, name + " of types that are not valid");
        require(described(function.resultType()).equals(group.schema), name + " schema");
        Method invoke = function.getClass().getMethod("invoke", headersClass(group.types), byte[].class);
        StructField[] fields = ((StructType) function.resultType()).fields();
        for (int index = 0; index < group.rows.size(); index++) {
            Row row = group.rows.get(index);
            InternalRow found;
            try {
                found = (InternalRow) invoke.invoke(function, row.headers, row.data);
            } catch (InvocationTargetException error) {
                throw error.getCause();
            }
            require(Arrays.equals(written(found, fields), row.expected), name + " row " + index);
        }
    }

    /** Return a type in the notation of {@code java_cases.py}, with a question mark where NULL is allowed. */
    private static String described(DataType type) {
        if (type instanceof StructType struct) {
            return Arrays.stream(struct.fields())
                    .map(field -> field.name() + ":" + described(field.dataType()) + (field.nullable() ? "?" : ""))
                    .collect(Collectors.joining(",", "struct<", ">"));
        }
        if (type instanceof MapType map) {
            String value = described(map.valueType()) + (map.valueContainsNull() ? "?" : "");
            return "map<" + described(map.keyType()) + "," + value + ">";
        }
        return type.simpleString();
    }

    /** Serialize and deserialize a function, as Spark sends it to executors. */
    private static Object copied(Object function, ClassLoader loader) throws IOException, ClassNotFoundException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(function);
        }
        try (var in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray())) {
            @Override
            protected Class<?> resolveClass(ObjectStreamClass description) throws ClassNotFoundException, IOException {
                try {
                    return Class.forName(description.getName(), false, loader);
                } catch (ClassNotFoundException error) {
                    return super.resolveClass(description);
                }
            }
        }) {
            return in.readObject();
        }
    }

    /** Run the program of the tests that prints properties of functions and rows. */
    private void checkProgram(Classes classes) throws Throwable {
        PrintStream original = System.out;
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        try {
            classes.loadClass(programName).getMethod("main", String[].class).invoke(null, (Object) new String[0]);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        } finally {
            System.setOut(original);
        }
        String[] found = output.toString(StandardCharsets.UTF_8).split("\n");
        String[] expected = programOutput.split("\n");
        for (int index = 0; index < expected.length; index++) {
            require(index < found.length && found[index].equals(expected[index]), expected[index]);
        }
    }

    private static void require(boolean isEqual, String what) throws Difference {
        if (!isEqual) {
            throw new Difference(what);
        }
    }

    private static Class<?> headersClass(StructType types) {
        DataType kind = types.fields()[0].dataType();
        return kind instanceof BinaryType ? byte[].class : kind instanceof MapType ? MapData.class : ArrayData.class;
    }

    // --- Values as bytes ---------------------------------------------------------------------------------------------

    private static byte[] written(InternalRow row, StructField[] fields) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        write(new DataOutputStream(bytes), row, fields);
        return bytes.toByteArray();
    }

    private static void write(DataOutputStream out, InternalRow row, StructField[] fields) throws IOException {
        for (int index = 0; index < fields.length; index++) {
            DataType type = fields[index].dataType();
            if (type instanceof StructType struct && !row.isNullAt(index)) {
                write(out, row.getStruct(index, struct.fields().length), struct.fields());
            } else {
                write(out, row.isNullAt(index) ? null : value(row, index, type));
            }
        }
    }

    private static byte[] value(InternalRow row, int index, DataType type) {
        if (type instanceof BinaryType) {
            return row.getBinary(index);
        }
        if (type instanceof StringType) {
            return row.getUTF8String(index).getBytes();
        }
        if (type instanceof MapType) {
            StringBuilder text = new StringBuilder();
            MapData map = row.getMap(index);
            for (int entry = 0; entry < map.numElements(); entry++) {
                text.append(map.keyArray().getUTF8String(entry)).append('=');
                text.append(map.valueArray().getUTF8String(entry)).append('\n');
            }
            return text.toString().getBytes(StandardCharsets.UTF_8);
        }
        return String.valueOf(row.get(index, type)).getBytes(StandardCharsets.UTF_8);
    }

    private static void write(DataOutputStream out, byte[] value) throws IOException {
        out.writeInt(value == null ? -1 : value.length);
        if (value != null) {
            out.write(value);
        }
    }

    private static Group group(DataInputStream in) throws IOException {
        String function = text(bytes(in));
        StructType types = StructType.fromDDL(text(bytes(in)));
        String schema = text(bytes(in));
        int count = in.readInt();
        if (count < 0) {
            return new Group(function, types, schema, null);
        }
        List<Row> rows = new ArrayList<>();
        DataType kind = types.fields()[0].dataType();
        for (int row = 0; row < count; row++) {
            rows.add(new Row(headers(in, kind, row), bytes(in), bytes(in)));
        }
        return new Group(function, types, schema, rows);
    }

    private static Object headers(DataInputStream in, DataType kind, int row) throws IOException {
        if (kind instanceof BinaryType) {
            return bytes(in);
        }
        int count = in.readInt();
        if (count < 0) {
            return null;
        }
        if (kind instanceof MapType map) {
            Object[] names = new Object[count];
            Object[] values = new Object[count];
            for (int index = 0; index < count; index++) {
                names[index] = header(in, map.keyType(), row);
                values[index] = map.valueType() instanceof ArrayType list
                        ? list(in, list.elementType(), row)
                        : header(in, map.valueType(), row);
            }
            return new ArrayBasedMapData(new GenericArrayData(names), new GenericArrayData(values));
        }
        StructField[] pair = ((StructType) ((ArrayType) kind).elementType()).fields();
        Object[] pairs = new Object[count];
        for (int index = 0; index < count; index++) {
            pairs[index] = in.readBoolean()
                    ? new GenericInternalRow(
                            new Object[] {header(in, pair[0].dataType(), row), header(in, pair[1].dataType(), row)})
                    : null;
        }
        return new GenericArrayData(pairs);
    }

    private static GenericArrayData list(DataInputStream in, DataType kind, int row) throws IOException {
        int count = in.readInt();
        if (count < 0) {
            return null;
        }
        Object[] values = new Object[count];
        for (int index = 0; index < count; index++) {
            values[index] = header(in, kind, row);
        }
        return new GenericArrayData(values);
    }

    /** Read a header; in odd rows, a text is a part of a larger array, as in Spark. */
    private static Object header(DataInputStream in, DataType kind, int row) throws IOException {
        byte[] header = bytes(in);
        if (header == null || !(kind instanceof StringType)) {
            return header;
        }
        if (row % 2 == 0) {
            return UTF8String.fromBytes(header);
        }
        byte[] array = new byte[header.length + 20];
        Arrays.fill(array, (byte) 'x');
        System.arraycopy(header, 0, array, 8, header.length);
        return UTF8String.fromBytes(array, 8, header.length);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static byte[] bytes(DataInputStream in) throws IOException {
        int size = in.readInt();
        return size < 0 ? null : in.readNBytes(size);
    }
}
